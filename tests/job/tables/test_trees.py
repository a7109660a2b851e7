"""Boosted trees in job files: tables as they are, a top model that begins at the base rate, scores of a run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import thinwire as tw
from cli.conftest import here  # noqa: F401  the commands, in this process
from job.small import JOB as SMALL
from job.small import write_job
from job.tables.companies import JOB
from job.tables.test_jobs import aligned
from thinwire.base.errors import BadInput
from thinwire.data.prepare import Preparation
from thinwire.engine.models import BiasTop
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.job_snapshot import save_job
from thinwire.job.party_view import read_party_view
from thinwire.lab.ablation import train_centrally
from thinwire.net.handshake import compare_agreements

Here = Callable[..., subprocess.CompletedProcess[str]]
METHOD = "boosting"
TREES = (
    JOB.replace('method = "svfl"', f'method = "{METHOD}"')
    .replace("batch_size = 64\n", "baselines = true\nimportance = true\n")
    .replace('{ name = "mlp", hidden = [16], width = 8 }', '{ name = "boosted_trees", leaves = 8 }')
    .replace('top = { name = "linear_top" }', 'top = { name = "bias_top" }\nloss = "binary_cross_entropy"')
)
BIAS = ['label_party.top={name="bias_top"}', "party.bank.model.width=1", "party.shop.model.width=1"]
BINARY = [*BIAS, "label_party.loss=binary_cross_entropy"]


def bias_of(party: tw.LabelParty) -> torch.Tensor:
    assert isinstance(party.top, BiasTop)
    return party.top.bias.detach()


@pytest.mark.parametrize("weights", [[], ["label_party.class_weights=[1, 3]"]], ids=["alike", "weighted"])
def test_a_bias_begins_at_the_labels_base_rate_in_one_process_and_over_the_network(
    tmp_path: Path, weights: list[str]
) -> None:
    path = write_job(tmp_path)
    job = load_job(path, [*BINARY, *weights])
    ill = job.label_party.labels.double().mean() * (3 if weights else 1)
    well = 1 - job.label_party.labels.double().mean()
    torch.testing.assert_close(bias_of(job.label_party), (ill / well).log().float()[None])
    own = read_party_view(path, "clinic", [*BINARY, *weights])
    party = own.build_label_party(own.load_label_data(), {"bank": 1, "shop": 1})
    assert torch.equal(bias_of(party), bias_of(job.label_party))


@pytest.mark.parametrize(
    "recipe", ["recipe.labels='shared'", "recipe.defence={name='LabelDP',epsilon=1}"], ids=["shared", "LabelDP"]
)
def test_a_bias_begins_at_0_where_others_build_it_or_labels_are_covered(tmp_path: Path, recipe: str) -> None:
    job = load_job(write_job(tmp_path), [*BINARY, recipe])
    assert bias_of(job.label_party).tolist() == [0]


# Tables -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return aligned(tmp_path_factory.mktemp("companies"), TREES)


@pytest.fixture(scope="module")
def run(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    job = load_job(path)
    save_job(folder, resolve_job(path), job)
    result = tw.train(job, callbacks=[], out=folder)
    assert result.summary()["test"]["auc"] > 0.88
    assert [one.note for one in result.baselines] == [""] * 4
    assert all(one.value is not None and one.value > 0.5 for one in result.baselines)
    assert result.importance is not None
    assert {one.column for one in result.importance.columns} == {"age", "job", "spend", "visits", "joined"}
    best = {one.party: one.column for one in reversed(result.importance.gains)}
    assert best == {"bank": "age", "shop": "spend"}
    assert "Gain of splits by column" in (folder / "report.html").read_text()
    return folder


def test_trees_get_their_tables_as_they_are_unless_told_otherwise(path: Path) -> None:
    bank = load_job(path).parties[0]
    assert bank.features.isnan().any()
    assert isinstance(bank.preparation, Preparation)
    assert bank.preparation.outputs == ("job", "age")
    assert bank.bottom.fields_vocab == (4,)
    assert 'missing = "keep", scaling = "none", categories = "codes"' in resolve_job(path)
    told = load_job(path, ['party.bank.prepare={missing="mean",scaling="quantile"}']).parties[0]
    assert isinstance(told.preparation, Preparation)
    assert told.preparation.outputs == ("job", "age", "age missing")
    assert told.features.isfinite().all()


def test_a_network_takes_no_gaps(path: Path) -> None:
    settings = ['party.bank.model={name="linear",width=1}', 'party.bank.prepare={missing="keep"}']
    says = "party.bank.prepare.missing is 'keep', but LinearBottom takes no missing values; use 'median', 'mean', b"
    with pytest.raises(BadInput, match=says):
        load_job(path, settings)


def test_tables_of_numbers_may_have_gaps_too(tmp_path: Path) -> None:
    job = write_job(tmp_path, SMALL.replace("batch_size = 32\n", ""))
    lines = (tmp_path / "shop.csv").read_text().splitlines()
    lines[3] = f",{lines[3].partition(',')[2]}"
    (tmp_path / "shop.csv").write_text("\n".join(lines))
    bank = np.load(tmp_path / "bank.npz")
    np.savez(tmp_path / "bank.npz", x=np.where(bank["x"] > 1, np.nan, bank["x"]), x_test=bank["x_test"])
    trees = [f'party.{name}.model={{name="boosted_trees"}}' for name in ("bank", "shop")]
    full = ['recipe={method="svfl"}', "label_party.loss=binary_cross_entropy", BIAS[0]]
    found = load_job(job, [*trees, *full]).parties
    assert bool(found[0].features.isnan().any())
    assert found[1].features[2].isnan().tolist() == [True, False]
    with pytest.raises(BadInput, match="line 4, column 'age' is missing or not a number"):
        load_job(job, [trees[0], *full, "party.shop.model.width=1"])
    with pytest.raises(BadInput, match=r"'x', row .* holds NaN"):
        load_job(job, [trees[1], *full, "party.bank.model.width=1"])
    np.savez(tmp_path / "bank.npz", x=np.where(bank["x"] > 1, np.inf, bank["x"]), x_test=bank["x_test"])
    with pytest.raises(BadInput, match=r"'x', row .* holds infinity"):
        load_job(job, [*trees, *full])


def test_a_runs_trees_score_rows_with_gaps_as_they_did_in_training(run: Path, path: Path) -> None:
    job = load_job(path)
    tables = {party.name: party.test_features for party in job.everyone}
    trained = tw.load_run(run)
    scores = trained.predict(tables)
    h = {name: trained.models[name](table) for name, table in tables.items()}
    expected = trained.models["top"](h["bank"].bfloat16().float() + h["shop"])  # as the recipe rounds what is scored
    assert torch.equal(scores, expected)
    one = torch.cat([trained.predict({name: x[[row]] for name, x in tables.items()}) for row in range(9)])
    assert torch.equal(one, scores[:9])
    unseen = {name: x[:1].clone() for name, x in tables.items()}
    unseen["bank"][:] = torch.nan
    assert trained.predict(unseen).isfinite().all()
    with pytest.raises(BadInput, match="features"):
        trained.predict({**unseen, "shop": torch.full_like(unseen["shop"], torch.inf)})


def test_commands_score_and_export_a_run(run: Path, path: Path, tmp_path: Path, here: Here) -> None:  # noqa: F811
    """New files with the same rows score to the last digit as the job's own; strangers get a score too."""
    for name in ("bank", "shop"):
        lines = (path.parent / f"{name}.csv").read_text().splitlines()
        new = {"bank": ["x1,,astronaut,hello", "x2,1e39,,"], "shop": ["x1,,3,2033-01-01,no", "x2,0.1,,,yes"]}
        (tmp_path / f"{name}.csv").write_text("\n".join([*lines, *new[name]]))
    asked = ("predict", str(run), "--out")
    files = [part for name in ("bank", "shop") for part in ("--features", f"{name}={name}.csv")]
    for words in ((*asked, "kept.csv", "--table", "all"), (*asked, "new.csv", *files)):
        done = here(*words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    texts = [(tmp_path / name).read_text().splitlines() for name in ("kept.csv", "new.csv")]
    kept, fresh = (dict(line.split(",", 1) for line in lines) for lines in texts)
    assert fresh.items() >= kept.items()
    assert fresh.keys() - kept.keys() == {'"x1"', '"x2"'}
    done = here("export", str(run), "--to", "onnx", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "bank.preparation.json").exists()


def find_direction(report: tw.audit.AuditReport) -> float:
    return next(one.score for one in report.findings if one.attack == "direction, after training")


def test_an_audit_reads_labels_off_derivatives_unless_label_dp_draws_them(run: Path, path: Path) -> None:
    report = tw.audit.audit_run(run)
    assert find_direction(report) > 0.99
    (alone,) = (one for one in report.findings if one.attack.startswith("model completion"))
    assert 0.5 < alone.chance < alone.score, "small trees of one's own know less than those of the run"
    assert next(one for one in report.findings if one.attack.startswith("inversion")).score > 0.1
    settings = ['recipe.defence={name="LabelDP",epsilon=0.5}', "job.baselines=false", "job.importance=false"]
    job = load_job(path, settings)
    begun = job.duplicate()
    tw.train(job, callbacks=[])
    assert find_direction(tw.audit.audit_job(job, begun)) < 0.8


def test_a_run_of_trees_goes_on_in_another_one_and_is_trained_centrally_too(run: Path, path: Path) -> None:
    plain = ["job.baselines=false", "job.importance=false"]
    job = load_job(path, plain)
    before = tw.load_run(run).models["bank"]
    assert isinstance(before, tw.learners.BoostedTrees)
    assert job.start_from(run).taken == ("bank", "shop", "top")
    tw.train(job, callbacks=[])
    after = job.parties[0].bottom
    assert isinstance(after, tw.learners.BoostedTrees)
    assert after.count > before.count
    assert after.nodes.threshold[: len(before.nodes.threshold)].tolist() == before.nodes.threshold.tolist()
    exact = load_job(path, [*plain, 'recipe={method="svfl"}'])
    twin = exact.duplicate()
    result = tw.train(exact, callbacks=[])
    assert train_centrally(twin)["auc"] == pytest.approx(result.history[-1]["test"]["auc"], abs=1e-6)
    wider = load_job(path, [*plain, *CLASSES])
    tw.train(wider, callbacks=[], out=run.parent / "wider")
    with pytest.raises(BadInput, match="its trees have 2 outputs there and 1 here"):
        load_job(path, plain).start_from(run.parent / "wider", fresh=["top"])


def test_trees_do_not_go_on_where_a_table_is_prepared_otherwise(run: Path, path: Path) -> None:
    plain = ["job.baselines=false", "job.importance=false"]
    job = load_job(path, [*plain, "party.bank.prepare.min_count=200"])
    with pytest.raises(BadInput, match=r"'bank' in .*: column 'job' was prepared as .* there, and is .*--fresh bank"):
        job.start_from(run)
    assert job.start_from(run, fresh=["bank"]).taken == ("shop", "top")


def test_a_feature_party_that_reads_another_loss_is_refused(path: Path) -> None:
    weighted = read_party_view(path, "shop", ["label_party.class_weights=[1, 3]"]).agreement()
    bank = read_party_view(path, "bank")
    (found,) = compare_agreements(bank.agreement(), weighted, "bank", "shop")
    assert found.startswith("trees.curvature (of the label party's top, fusion, loss and class_weights) is derived")
    assert found.endswith("at 'bank' and 0.25 at 'shop'")
    assert not compare_agreements(bank.agreement(), read_party_view(path, "shop").agreement(), "bank", "shop")
    mixed = [*CLASSES, 'label_party.top={name="bias_top",width=2}', 'party.bank.model={name="linear",width=2}']
    theirs = {key: value for key, value in weighted.items() if not key.startswith("trees.")}
    assert not compare_agreements(read_party_view(path, "bank", mixed).agreement(), theirs, "bank", "shop")


def test_products_across_parties_in_a_job_file(path: Path) -> None:
    top = ['label_party.top={name="interaction_top",pairs=1}', "label_party.fusion=concat"]
    job = load_job(path, [*top, "job.baselines=false", "job.importance=false"])
    for party in job.everyone:
        assert isinstance(party.bottom, tw.learners.BoostedTrees)
        assert (party.bottom.width, party.bottom.pairs, party.bottom.curvature) == (2, 1, "derived")
    assert bias_of(job.label_party).item() != 0
    bank = read_party_view(path, "bank", top).load_features().bottom
    assert isinstance(bank, tw.learners.BoostedTrees)
    assert (bank.width, bank.pairs) == (2, 1)
    seen = [read_party_view(path, name, top).who_sees()["bank"] for name in ("bank", "shop")]
    assert seen[0] == seen[1]
    assert "the sum of the other parties' outputs that its own are multiplied with" in seen[0][-1]
    assert tw.train(job, callbacks=[]).summary()["test"]["auc"] > 0.85
    with pytest.raises(BadInput, match=r"InteractionTop: embeddings of 2 numbers per party.*fusion = 'concat'"):
        load_job(path, top[:1])


# What follows from the label party's side ---------------------------------------------------------------------------


CLASSES = ["label_party.loss=cross_entropy"]
VISITS = [
    "label_party.labels={file='shop.csv',column='visits'}",
    "label_party.features={file='shop.csv',all_but=['bought']}",
    "job.metrics=[]",
]


@pytest.mark.parametrize(
    ("settings", "width", "curvature"),
    [
        ([], 1, "derived"),
        (CLASSES, 2, "derived"),
        ([*CLASSES, 'label_party.top={name="mlp_top",hidden=[4],classes=2}'], 2, 0.25),
        (["label_party.class_weights=[1, 2]"], 1, 0.25),
        (['recipe.defence={name="MaxNorm"}'], 1, 0.25),
        ([*VISITS, "label_party.loss=poisson"], 1, "mean_square"),
        ([*VISITS, "label_party.loss=squared_error"], 1, 2.0),
    ],
    ids=["binary", "classes", "another top", "weighted", "defended", "counts", "value"],
)
def test_width_and_curvature_follow_from_the_loss(
    path: Path, settings: list[str], width: int, curvature: float | str
) -> None:
    job = load_job(path, settings)
    for party in job.everyone:
        assert isinstance(party.bottom, tw.learners.BoostedTrees)
        assert (party.bottom.width, party.bottom.curvature) == (width, curvature)
    if width == 1:  # how many classes there are is in no file: a feature party alone cannot know
        bank = read_party_view(path, "bank", settings).load_features().bottom
        assert isinstance(bank, tw.learners.BoostedTrees)
        assert (bank.width, bank.curvature) == (width, curvature)


def test_a_feature_party_alone_says_what_it_has_to_know(path: Path, tmp_path: Path) -> None:
    says = "party.bank.model.width is missing: the trees need to know the loss, and the job does not set it"
    with pytest.raises(BadInput, match=says):
        read_party_view(path, "bank", CLASSES)
    stated = [*CLASSES, 'label_party.top={name="bias_top",width=2}']
    own = read_party_view(path, "bank", stated)
    assert own.load_features().bottom.width == 2
    kept = tmp_path / "job.toml"
    kept.write_text(own.format_document())  # which says nothing of the label party but its name
    assert read_party_view(kept, "bank").load_features().bottom.width == 2


def test_a_bias_needs_one_embedding_for_each_output(path: Path) -> None:
    own = read_party_view(path, "shop", CLASSES)
    with pytest.raises(BadInput, match=r"label_party\.fusion: fusion 'sum' adds embeddings, but their widths differ"):
        own.build_label_party(own.load_label_data(), {"bank": 1})
    says = (
        "label_party.top adds a bias to embeddings that are 1 wide, but a row has 2 outputs.*give every party's model"
    )
    with pytest.raises(BadInput, match=says):
        load_job(path, [*CLASSES, "party.bank.model.width=1", "label_party.model.width=1"])
    with pytest.raises(BadInput, match="that are 2 wide, but a row has 1 outputs"):
        load_job(path, ["label_party.fusion=concat"])
