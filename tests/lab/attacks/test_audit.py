"""The audit of a job or a run folder: it sees what was really sent, and says what it means."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

import thinwire as tw
from lab.attacks.task import COLUMNS, PARTIES, ROWS, WIDTH, Recording, bottom, job, table
from lab.attacks.test_dp_release import without_noise
from thinwire.base.errors import BadInput, BadParameter
from thinwire.cli.audit import audit
from thinwire.engine.compress import PoissonBinomial, Uniform
from thinwire.engine.methods import celu, cvfl, efvfl, pbm, svfl, thin
from thinwire.engine.privacy import SecureSum
from thinwire.engine.privacy.defences import Defence, LabelDP, Marvell, MaxNorm
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.job_snapshot import save_job
from thinwire.lab import attacks
from thinwire.lab.attacks import AuditReport, Finding, audit_job, audit_run, record_derivatives
from thinwire.lab.attacks.views import exact_views, looks_of, views

ALL_ROWS = torch.arange(ROWS)


def found(report: AuditReport, attack: str) -> Finding:
    (one,) = [finding for finding in report.findings if finding.attack.startswith(attack)]
    return one


def audited(recipe: tw.Recipe, **settings: Any) -> AuditReport:
    described = job(recipe, **settings)
    tw.train(described, callbacks=[])
    return audit_job(described, rows=ROWS)


# What it sees is what was sent -------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_derivatives_worked_out_are_those_that_were_sent(epochs: int) -> None:
    longer = job(svfl(), lambda place: Recording(bottom(place)), batch_size=None, epochs=epochs)
    tw.train(longer, callbacks=[])
    stopped = job(svfl(), batch_size=None, epochs=max(epochs - 1, 1))
    if epochs > 1:
        tw.train(stopped, callbacks=[])
    seen = views(stopped, ALL_ROWS, 1)
    for party in longer.parties:
        assert isinstance(party.bottom, Recording)
        assert torch.equal(seen.derivatives[party.name], party.bottom.received[-1])
    assert torch.equal(exact_views(stopped, ALL_ROWS).derivatives["bank"], seen.derivatives["bank"])


@pytest.mark.parametrize("defence", [MaxNorm(), Marvell(4.0)], ids=str)
def test_a_defence_is_seen_with_the_spread_that_was_sent(defence: Defence) -> None:
    described = job(
        replace(svfl(), defence=defence), lambda place: Recording(bottom(place)), batch_size=None, epochs=1
    )
    tw.train(described, callbacks=[])
    fresh = job(replace(svfl(), defence=defence), batch_size=None, epochs=1)
    exact = exact_views(fresh, ALL_ROWS).derivatives["bank"]
    recording = described.parties[0].bottom
    assert isinstance(recording, Recording)
    sent, seen = recording.received[0], views(fresh, ALL_ROWS, 1).derivatives["bank"]
    assert not torch.equal(sent, seen)
    assert float((seen - exact).norm()) == pytest.approx(float((sent - exact).norm()), rel=0.2)
    # Noise of independent looks averages out.
    assert float((views(fresh, ALL_ROWS, 16).derivatives["bank"] - exact).norm()) < 0.4 * float((sent - exact).norm())


def test_under_secure_sum_there_is_one_sum_and_one_derivative() -> None:
    summed = replace(cvfl(Uniform(8, bounds=(-1.0, 1.0)), labels="private"), aggregation=SecureSum())
    seen = views(job(summed), ALL_ROWS, 1)
    assert list(seen.embeddings) == ["the sum"]
    exact = exact_views(job(summed), ALL_ROWS)
    total = torch.stack(list(exact.embeddings.values())).sum(dim=0)
    assert torch.allclose(seen.embeddings["the sum"], total, atol=4 * 2 / 255)
    for name in PARTIES:
        assert torch.equal(seen.derivatives[name], seen.derivatives["bank"])


@pytest.mark.parametrize(
    ("recipe", "least"),
    [(svfl(), 0.9999), (celu(capacity=2, reuse=2), 0.9999), (thin(), 0.2)],  # thin has a bit or two a value
    ids=["svfl", "celu", "thin"],
)
def test_what_was_heard_is_what_was_sent(recipe: tw.Recipe, least: float) -> None:
    described = job(recipe, epochs=1)
    first = described.divide_rows().rows(0)
    told = record_derivatives(described)
    # The first batch was sent from the first weights.
    alone = job(svfl(), epochs=1)
    exact = exact_views(alone, first).derivatives
    for name in PARTIES:
        assert told[name].shape == (ROWS, WIDTH)
        near = torch.cosine_similarity(told[name][first], exact[name].double(), dim=1)
        assert float(near.mean()) > least


def test_under_secure_sum_all_hear_the_same() -> None:
    told = record_derivatives(job(pbm(16, 0.2), epochs=1))
    assert all(torch.equal(told[name], told["bank"]) for name in PARTIES)
    with pytest.raises(BadInput, match="there is nothing to attack"):
        record_derivatives(job(efvfl(Uniform(8), labels="shared")))


@pytest.mark.parametrize("recipe", [svfl(), pbm(16, 0.2)], ids=["svfl", "pbm"])
def test_who_heard_nothing_is_left_out(recipe: tw.Recipe) -> None:
    """A run whose goal is met before its first round."""
    described = job(recipe, epochs=1, target=("loss", 1e9))
    assert record_derivatives(described) == {}
    assert not any("whole run" in finding.attack for finding in audit_job(described, heard={}).findings)


def test_listening_leaves_the_job_as_it_was() -> None:
    described = job(svfl(), epochs=1)
    before = {name: tensor.clone() for name, tensor in described.label_party.top.state_dict().items()}
    record_derivatives(described)
    assert all(torch.equal(tensor, before[name]) for name, tensor in described.label_party.top.state_dict().items())
    assert described.recipe == svfl()


def test_a_row_is_seen_once_an_epoch() -> None:
    assert looks_of(job(svfl(), epochs=7)) == 7
    assert looks_of(job(svfl(), epochs=0.5)) == 1
    assert looks_of(job(svfl(), epochs=5000)) == 100


# What it says ------------------------------------------------------------------------------------------------


def test_an_undefended_run_leaks_labels_and_features() -> None:
    report = audited(svfl())
    for attack in ("norm", "direction", "spectral"):
        one = found(report, attack)
        assert one.works
        assert one.undefended_score == pytest.approx(one.score) == pytest.approx(one.once_score)
        assert one.score >= 0.98
        assert "can infer nearly all of the rows of class 1" in one.meaning
    assert found(report, "inversion").score > 0.9
    assert report.model.metric == "auc"
    assert 0.7 < report.model.value < 0.95
    assert report.release is None


def test_pbm_hides_features_and_not_labels() -> None:
    report = audited(pbm(16, 0.2))
    assert found(report, "direction").score >= 0.99
    inversion = found(report, "inversion")
    assert inversion.works
    assert inversion.once_score < 0.1
    assert "learns little or nothing about the features" in inversion.meaning
    assert report.release is not None
    assert 0 < report.release.measured <= report.release.claimed


@pytest.mark.parametrize("defence", [MaxNorm(), Marvell(4.0)], ids=str)
def test_noise_helps_once_and_averages_out(defence: Defence) -> None:
    # Under some secrets one look is enough in spite of MaxNorm; not under this one.
    report = audited(replace(svfl(), defence=defence), noise_secret=bytes(range(1, 33)))
    one = found(report, "direction")
    assert one.undefended_score == pytest.approx(1.0)
    assert one.once_score < 0.85
    assert one.score > one.once_score + 0.03  # 0.06 to 0.33 with ten secrets for each of two defences
    assert "can infer most of the rows of class 1" in one.meaning
    # One processor's instructions give a gap of 0.07 and another's one above 0.1, where the sentence changes.
    assert ("once all epochs are averaged" in one.meaning) == (one.score - one.once_score > 0.1)
    assert report.model.value > 0.7
    assert found(report, "model completion").undefended_score is None


@pytest.mark.long
def test_a_patient_party_hears_more_than_the_trained_model_tells() -> None:
    described = job(replace(svfl(), defence=MaxNorm()))
    begun = described.duplicate()
    tw.train(described, callbacks=[])
    report = audit_job(described, begun, ROWS, record_derivatives(begun))
    whole, after = found(report, "direction, whole run"), found(report, "direction, after training")
    assert whole.once_score == after.once_score
    assert whole.score > max(after.score, 0.95)


def test_label_dp_does_not_average_out() -> None:
    report = audited(replace(svfl(), defence=LabelDP(1.0)))
    one = found(report, "direction")
    assert one.undefended_score == pytest.approx(1.0)
    assert one.score < 0.8
    assert one.score == pytest.approx(one.once_score, abs=0.02)


def test_shared_labels_need_no_attack() -> None:
    report = audited(efvfl(Uniform(8), labels="shared"), epochs=2)
    assert [one.attack.split(",")[0] for one in report.findings] == ["inversion"]
    assert report.findings[0].attacker == "every other party"
    assert "labels are shared" in report.notes[0]


def test_thin_with_compressed_derivatives_leaks_all_the_same() -> None:
    assert found(audited(thin(), epochs=3), "direction").score > 0.9


def many_classes() -> tw.Job:
    x, _ = table()
    torch.manual_seed(0)
    labels = (x[0][:ROWS, 0] * 1.5).round().clamp(-2, 2).long() + 2
    parties = [
        tw.FeatureParty(name, part[:ROWS], bottom(k)) for k, (name, part) in enumerate(zip(PARTIES, x, strict=True))
    ]
    return tw.Job(
        parties, tw.LabelParty("ads", labels, nn.Linear(8, 5)), svfl(), optimizer=tw.Adam(lr=0.01), epochs=3
    )


def test_of_many_classes_the_rarest_is_attacked() -> None:
    described = many_classes()
    tw.train(described, callbacks=[])
    rarest = int(torch.bincount(described.label_party.labels).argmin())
    one = found(audit_job(described), "direction")
    assert one.leaks == f"the rows of class {rarest}"
    assert one.score > 0.9


def test_numbers_are_not_attacked_as_labels() -> None:
    x, _ = table()
    described = tw.Job(
        [
            tw.FeatureParty(name, part[:ROWS], bottom(k))
            for k, (name, part) in enumerate(zip(PARTIES, x, strict=True))
        ],
        tw.LabelParty("ads", x[0][:ROWS].sum(dim=1), nn.Linear(8, 1), loss=tw.losses.squared_error),
        svfl(),
        metrics=["mse"],
        epochs=1,
    )
    report = audit_job(described)
    assert [one.attack.split(",")[0] for one in report.findings] == ["inversion"]
    assert "they are not classes" in report.notes[0]
    assert report.model.metric == "mse"


def test_a_regression_s_directions_are_said_not_to_be_looked_at() -> None:
    x, labels = table()
    parties = [tw.FeatureParty("bank", x[0][:ROWS], tw.learners.Linear(x[0].shape[1]))]
    top = tw.learners.RegressionTop()
    label = tw.LabelParty("ads", labels[:ROWS], top, loss=tw.losses.binary_cross_entropy)
    report = audit_job(tw.Job(parties, label, svfl(), epochs=2), rows=200)
    assert any("one more direction of a party's columns with every exchange" in note for note in report.notes)


def test_a_report_comes_out_the_same_again() -> None:
    described = job(pbm(16, 0.2), epochs=2)
    tw.train(described, callbacks=[])
    assert audit_job(described, rows=300).to_dict() == audit_job(described, rows=300).to_dict()


def test_an_attack_that_fails_undefended_proves_nothing() -> None:
    one = Finding("norm", "feature party bank", "labels", "AUC", 0.5, 0.7, 0.55, 0.52, 0.52)
    assert not one.works
    assert "fails here even without a defence" in one.meaning


@pytest.mark.parametrize(
    ("once_score", "ends"), [(0.69, "class 1 once all epochs are averaged."), (0.71, "class 1.")]
)
def test_a_finding_says_where_only_patience_helps(once_score: float, ends: str) -> None:
    one = Finding("norm", "feature party bank", "the rows of class 1", "AUC", 0.5, 0.7, 1.0, once_score, 0.8)
    assert one.meaning == f"Feature party bank can infer most of the rows of {ends}"


def test_a_handful_of_rows_is_refused() -> None:
    for rows in (10, True, 2.5):
        with pytest.raises(BadParameter, match="rows must be an integer, 50 or more"):
            audit_job(job(svfl()), rows=rows)  # type: ignore[arg-type]


def few(rows: int, labels: torch.Tensor) -> tw.Job:
    x, _ = table()
    party = tw.FeatureParty("bank", x[0][:rows], bottom(0))
    flat = tw.FeatureParty("shop", torch.ones(rows, COLUMNS), bottom(1))
    return tw.Job([party, flat], tw.LabelParty("ads", labels, nn.Linear(8, 2)), svfl(), epochs=1)


def test_small_jobs_are_audited_as_far_as_it_makes_sense() -> None:
    with pytest.raises(BadInput, match="the job has 40 training rows; an audit needs at least 50"):
        audit_job(few(40, torch.arange(40) % 2))
    # Six rows of a class are too few to attack, and a party with constant columns has nothing to lose.
    for rows in (60, 200):
        report = audit_job(few(rows, (torch.arange(rows) < 6).long()))
        assert [one.attack.split(",")[0] for one in report.findings] == ["inversion"]
    assert report.findings[0].leaks == "the features of bank"


# Run folders -------------------------------------------------------------------------------------------------

PBM = """method = "pbm"
trials = 4
beta = 0.05"""
HEAD = """
[job]
epochs = 5
batch_size = 100
metrics = ["auc"]
[recipe]
{method}
{defence}
[optimizer]
name = "adam"
lr = 0.01
[label_party]
name = "ads"
labels = {{ file = "data.npz", key = "labels" }}
top = {{ name = "linear_top", classes = 2 }}
loss = "cross_entropy"
"""
PARTY = """
[[party]]
name = "{name}"
features = {{ file = "data.npz", key = "{name}" }}
model = {{ name = "mlp", hidden = [16], width = 8 }}
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    def trained(defence: str = "", method: str = 'method = "svfl"') -> Path:
        x, y = table()
        columns = {name: part[:ROWS].numpy() for name, part in zip(PARTIES, x, strict=True)}
        np.savez(tmp_path / "data.npz", labels=y[:ROWS].numpy(), **columns)  # type: ignore[arg-type]
        path = tmp_path / "job.toml"
        path.write_text(
            HEAD.format(defence=defence, method=method) + "".join(PARTY.format(name=name) for name in PARTIES)
        )
        folder = tmp_path / "run"
        described = load_job(path)
        save_job(folder, resolve_job(path), described)
        tw.train(described, callbacks=[], out=folder)
        return folder

    return trained


def told(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(audit)
    shown = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return shown.exit_code, shown.stdout


def test_a_run_folder_is_audited_before_and_after_training(run: Callable[..., Path]) -> None:
    folder = run('defence = { name = "Marvell", power = 4.0 }')
    code, text = told(str(folder), "--json", "--rows", "500")
    report = json.loads(text)
    assert code == 0
    assert report["defence"] == "Marvell(power=4.0)"
    assert report["rows"] == 500
    assert report["model"]["rows"] == "training"
    attacks = {one["attack"]: one for one in report["findings"]}
    assert {"direction, before training", "direction, after training", "norm, after training"} <= attacks.keys()
    assert all(isfinite(one["score"]) for one in report["findings"])
    after = attacks["direction, after training"]
    assert after["works"]
    assert after["undefended_score"] == pytest.approx(1.0)
    assert after["once_score"] < 0.9
    # Without the run the attacker has its own untrained model and the same few labels.
    assert attacks["model completion, 40 labels"]["chance"] != 0.5


def test_the_table_is_for_people(run: Callable[..., Path]) -> None:
    code, text = told(str(run("")), "--replay")
    assert code == 0
    assert "spectral, whole run" in text
    assert "svfl, NoDefence(): 1000 training rows attacked" in text
    assert "The model itself: auc 0." in text
    assert "direction, after training: Feature party bank can infer nearly all of the rows of class 1." in text


def test_what_is_no_finished_run_is_refused(run: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is not a run folder: it holds no job\.toml"):
        audit_run(tmp_path / "nowhere")
    (tmp_path / "part" / "models").mkdir(parents=True)
    (tmp_path / "part" / "models" / "bank.safetensors").touch()
    (tmp_path / "part" / "job.toml").write_text('[[party]]\nname = "bank"\nfeatures = {}\n[[party]]\nname = "shop"\n')
    with pytest.raises(BadInput, match="holds one party's part of a run over the network, without the data of shop"):
        audit_run(tmp_path / "part")
    folder = run("")
    model = folder / "models" / "bank.safetensors"
    kept = model.read_bytes()
    model.write_bytes(kept[:100])
    with pytest.raises(BadInput, match=r"bank\.safetensors does not hold this job's model"):
        audit_run(folder)
    model.unlink()
    with pytest.raises(BadInput, match=r"bank\.safetensors is missing: the run has not finished"):
        audit_run(folder)
    model.write_bytes(kept)
    data = dict(np.load(tmp_path / "data.npz"))
    np.savez(tmp_path / "data.npz", **{**data, "bank": data["bank"] + np.ones(COLUMNS)})
    with pytest.raises(BadInput, match=r"bank\.features has changed since the run"):
        audit_run(folder)


def test_the_exit_code_follows_the_verdict(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run("", PBM)
    monkeypatch.setattr(attacks.audit, "_MOST_DRAWS", 300_000)

    def conclude(*more: str) -> tuple[int, str]:
        code, text = told(str(folder), "--rows", "60", *more)
        return code, text.split("Verdict on noise and masks: ")[1].split(".")[0]

    assert conclude() == (3, "INCONCLUSIVE")
    assert conclude("--replay") == (0, "HOLDS")
    monkeypatch.setattr(PoissonBinomial, "compress", without_noise)
    assert conclude("--replay") == (1, "REFUTED")
