"""Jobs: what is refused, what stops a run, what a result says."""

from __future__ import annotations

import signal
from pathlib import Path
from time import sleep
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from engine.identities.small import bottom, digits, job, top, trained
from thinwire.base.errors import BadInput, BadParameter, Diverged, IncompatibleRecipe
from thinwire.engine.compress import PoissonBinomial, TopK, Uniform
from thinwire.engine.methods import celu, cvfl, efvfl, fedbcd, pbm, svfl, thin
from thinwire.engine.privacy import SecureSum
from thinwire.engine.schedule import CachedSteps, Overlap
from thinwire.engine.streams import Direct
from thinwire.predict.model_store import load_model
from thinwire.report.folder import read_run
from thinwire.storage.run_directory import RunDirectory


def test_history_begins_before_training_and_ends_after_the_last_round() -> None:
    result = trained(svfl(), eval_every=7)
    assert [row["round"] for row in result.history] == [0, 7, 14, 20]
    assert result.history[-1]["epoch"] == 4
    assert result.history[0]["bytes"]["total"] == 0
    assert result.history[-1]["train"]["loss"] < result.history[0]["train"]["loss"]


def test_the_summary_has_the_contracts_keys() -> None:
    summary = trained(svfl(), target=("accuracy", 0.5), link=tw.Link(100, 10)).summary()
    assert {"method", "rounds", "epochs", "seconds", "link_seconds", "bytes", "messages"} <= summary.keys()
    assert {"train", "test", "target", "best", "privacy", "run_dir"} <= summary.keys()
    assert {"validation", "delivered", "quality", "baselines", "importance", "stopped_by"} <= summary.keys()
    counted = {"up", "down", "total", "evaluation", "retransmitted", "handshake", "all"}
    assert summary["bytes"].keys() == counted
    assert {"metric", "value", "round"} == summary["delivered"].keys()
    assert {"metric", "value", "reached_round", "bytes", "seconds", "link_seconds"} == summary["target"].keys()
    assert {"metric", "value", "round"} == summary["best"].keys()


def test_training_stops_at_the_target_unless_told_otherwise() -> None:
    stopped = trained(svfl(), eval_every=1, epochs=20, target=("accuracy", 0.5))
    went_on = trained(svfl(), eval_every=1, epochs=20, target=("accuracy", 0.5), stop=False)
    assert stopped.summary()["target"]["reached_round"] == went_on.summary()["target"]["reached_round"]
    assert stopped.history[-1]["round"] == stopped.summary()["target"]["reached_round"] < 100
    assert went_on.history[-1]["round"] == 100
    low = trained(svfl(), eval_every=1, epochs=20, target=("loss", 1.5))
    assert low.history[-1]["test"]["loss"] <= 1.5 < low.history[-2]["test"]["loss"]


def test_training_stops_at_a_budget() -> None:
    by_bytes = trained(svfl(), eval_every=1, byte_budget=50_000)
    assert by_bytes.history[-2]["bytes"]["total"] < 50_000 <= by_bytes.history[-1]["bytes"]["total"]
    by_time = trained(svfl(), eval_every=1, link=tw.Link(10, 20, compute_ms=1), link_seconds_budget=0.3)
    assert by_time.history[-2]["link_seconds"] < 0.3 <= by_time.history[-1]["link_seconds"]


def test_callbacks_see_every_evaluation() -> None:
    seen: list[int] = []
    result = tw.train(job(svfl()), [lambda event: seen.append(event["round"])])
    assert seen == [row["round"] for row in result.history]


def test_a_callback_that_returns_true_ends_the_run_as_a_finished_one(tmp_path: Path) -> None:
    seen: list[int] = []

    def stop_at_four(event: dict[str, Any]) -> bool:
        return bool(event["round"] == 4)

    def count(event: dict[str, Any]) -> int:
        seen.append(event["round"])
        return 1  # true, and not True

    given: dict[str, Any] = {"eval_every": 2, "epochs": 4}
    both: list[Any] = [stop_at_four, count]
    result = tw.train(job(svfl(), **given), callbacks=both, out=tmp_path)
    summary = result.summary()
    assert (summary["rounds"], summary["stopped_by"], summary["interrupted"]) == (4, "callback", False)
    assert seen == [event["round"] for event in result.history]
    for name in ("result.json", "ledger.json", "report.html", "models/top.safetensors"):
        assert (tmp_path / name).is_file(), name
    assert read_run(tmp_path).state == "finished"
    whole = tw.train(job(svfl(), **given), callbacks=[])
    assert whole.summary()["stopped_by"] is None
    resumed = tw.train(job(svfl(), **given), callbacks=[], out=tmp_path, resume=True)
    assert [event["train"] for event in resumed.history] == [event["train"] for event in whole.history]


def test_every_round_may_be_followed() -> None:
    done: list[int] = []
    tw.train(job(svfl()), on_round=done.append)
    assert done == list(range(1, 21))


def test_a_line_follows_a_run_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tw.train(job(svfl()))
    assert capsys.readouterr().err == ""  # nobody looks
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    tw.train(job(svfl()))
    assert "round 20/20" in capsys.readouterr().err


def test_the_run_directory_holds_everything(tmp_path: Path) -> None:
    result = tw.train(job(efvfl(TopK(0.2))), out=tmp_path / "run")
    assert result.run_dir == tmp_path / "run"
    names = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {"recipe.json", "events.jsonl", "ledger.json", "models/p0.safetensors", "models/top.safetensors"} <= names
    assert len((tmp_path / "run" / "events.jsonl").read_text().splitlines()) == len(result.history)
    with pytest.raises(BadInput, match="already holds a run"):
        tw.train(job(svfl()), out=tmp_path / "run")
    with pytest.raises(BadInput, match="another job: recipe differ"):
        tw.train(job(svfl()), out=tmp_path / "run", resume=True)
    with pytest.raises(BadInput, match="no checkpoint"):
        tw.train(job(svfl()), out=tmp_path / "nothing", resume=True)


def test_a_damaged_checkpoint_falls_back_one_generation(tmp_path: Path) -> None:
    whole = tw.train(job(svfl(), eval_every=4), out=tmp_path / "a")
    tw.train(job(svfl(), eval_every=4), out=tmp_path / "b")
    damaged = max((tmp_path / "b" / "checkpoints").iterdir()) / "p1.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"damage!!!")
    again = tw.train(job(svfl(), eval_every=4), out=tmp_path / "b", resume=True)
    assert [row["train"] for row in again.history] == [row["train"] for row in whole.history]


@pytest.mark.parametrize(
    "eval_every", [7, pytest.param(100, marks=pytest.mark.long)]
)  # right after a rest, and far from one
@pytest.mark.parametrize("recipe", [thin(), celu(4, 4, overlap="ahead")])
def test_ctrl_c_leaves_a_resumable_run(
    recipe: tw.Recipe, eval_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"eval_every": eval_every, "link": tw.Link(10, 5, compute_ms=2)}
    whole = tw.train(job(recipe, **given))
    from thinwire.engine.programs.program import Control

    begin = Control.may_begin

    def press_ctrl_c_in_round_7(self: Control, round: int) -> bool:
        may = begin(self, round)
        if round == 7 and not self.stopping:
            signal.raise_signal(signal.SIGINT)
            while not self.stopping:
                sleep(0.001)
        return may

    monkeypatch.setattr(Control, "may_begin", press_ctrl_c_in_round_7)
    stopped = tw.train(job(recipe, **given), out=tmp_path)
    assert stopped.interrupted
    monkeypatch.setattr(Control, "may_begin", begin)
    resumed = tw.train(job(recipe, **given), out=tmp_path, resume=True)
    assert not resumed.interrupted
    assert resumed.history[-1]["link_seconds"] == whole.history[-1]["link_seconds"]
    assert resumed.history[-1]["train"] == whole.history[-1]["train"]
    assert resumed.ledger.entries() == whole.ledger.entries()


def test_a_diverging_run_says_so() -> None:
    with pytest.raises(tw.errors.ThinwireError, match=r"(NaN|infinity|nan|inf)"):
        trained(svfl(), optimizer=tw.SGD(lr=1e38), epochs=10, eval_every=1)


@pytest.mark.parametrize(
    ("recipe", "settings", "way_out"),
    [
        (celu(3, 3), {"recipe_labels": "shared"}, "use labels='private'"),
        (efvfl(TopK(0.1), labels="private", local_steps=3), {}, "use fedbcd, celu or thin"),
        (cvfl(Uniform(2), labels="private", local_steps=2), {}, "use fedbcd, celu or thin"),
        (pbm(4, 0.1), {"parties": 2}, "secure sum needs 3 feature parties, there are 2"),
        (pbm(4, 0.1), {"fusion": "concat"}, "use fusion='sum'"),
        (thin(overlap="ahead"), {"batches": "announced"}, "use batches='derived'"),
        (celu(2, 2, overlap="filling"), {}, "Give the job a link, or use overlap=True"),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(
    recipe: tw.Recipe, settings: dict[str, Any], way_out: str
) -> None:
    if settings.pop("recipe_labels", None):
        from dataclasses import replace

        from thinwire.engine.privacy import Labels

        recipe = replace(recipe, labels=Labels.SHARED)
    with pytest.raises(IncompatibleRecipe, match=way_out):
        trained(recipe, **settings)


def test_more_recipes_that_cannot_work() -> None:
    from dataclasses import replace

    base = svfl()
    wrong: list[tuple[tw.Recipe, str]] = [
        (replace(base, aggregation=SecureSum()), "Use PoissonBinomial"),
        (replace(base, warm_start=True), "use efvfl or thin"),
        (replace(base, order="update_first"), "use efvfl"),
        (efvfl(TopK(0.1), order="update_first"), "use warm_start=True, or order='exchange_first'"),
        (replace(thin(), order="update_first", warm_start=True), "nothing to overlap with and no exchange to cache"),
        (replace(base, broadcast="surrogates"), "needs error feedback and shared labels"),
        (replace(base, order="sometimes"), "order must be"),
        (replace(base, broadcast="all"), "broadcast must be"),
        (replace(base, uplink=Direct(PoissonBinomial(4, 0.1))), "use pbm"),
        (replace(pbm(4, 0.1), schedule=CachedSteps(2, 2, overlap=Overlap.FILLING)), "use overlap=True"),
    ]
    for recipe, message in wrong:
        with pytest.raises(BadInput, match=message):
            recipe.check(parties=3, fusion="mean" if "fusion" in message else "sum")


def test_digests_follow_every_part_of_a_recipe() -> None:
    recipes = [
        svfl(),
        fedbcd(2),
        fedbcd(3),
        cvfl(TopK(0.1)),
        cvfl(TopK(0.2)),
        efvfl(TopK(0.1)),
        efvfl(TopK(0.1), labels="private"),
        celu(5, 5),
        celu(5, 5, overlap=True),
        celu(5, 5, overlap="ahead"),
        pbm(4, 0.1),
        thin(),
    ]
    assert len({recipe.digest() for recipe in recipes}) == len(recipes)
    assert thin().digest() == thin().digest()


def test_wrong_parts_of_a_job_are_named() -> None:
    x, y = digits()
    party = tw.FeatureParty("bank", x[0], bottom(0))
    labels = tw.LabelParty("shop", y, top())
    with pytest.raises(BadInput, match="party 'bank' has 100 rows, 'shop' has 360 labels"):
        tw.Job([tw.FeatureParty("bank", x[0][:100], bottom(0))], labels, svfl())
    with pytest.raises(BadInput, match="a unique name"):
        tw.Job([party, party], labels, svfl())
    with pytest.raises(BadInput, match="at least one feature party"):
        tw.Job([], labels, svfl())
    with pytest.raises(BadInput, match="5 test rows, but there are no test labels"):
        tw.Job([tw.FeatureParty("bank", x[0], bottom(0), x[0][:5])], labels, svfl())
    with pytest.raises(BadParameter, match="batch_size must be from 1 to the 360 training rows, got 400"):
        tw.Job([party], labels, svfl(), batch_size=400)
    with pytest.raises(BadParameter, match="epochs must be above 0"):
        tw.Job([party], labels, svfl(), epochs=0)
    with pytest.raises(BadParameter, match="target 'auc' is not among the metrics"):
        tw.Job([party], labels, svfl(), target=("auc", 0.9))
    with pytest.raises(BadInput, match="a name has at most 64 letters"):
        tw.FeatureParty("../bank", x[0], bottom(0))
    with pytest.raises(BadInput, match="features and bottom must be given together"):
        tw.LabelParty("shop", y, top(), features=x[0])
    with pytest.raises(BadInput, match="bottom must be a torch module"):
        tw.FeatureParty("bank", x[0], "mlp")  # type: ignore[arg-type]
    bad = x[0].clone()
    bad[3, 1] = float("nan")
    with pytest.raises(BadInput, match=r"holds NaN at \[3, 1\]"):
        tw.FeatureParty("bank", bad, bottom(0))


def test_models_that_do_not_fit_are_named() -> None:
    x, y = digits()
    labels = tw.LabelParty("shop", y, top())
    with pytest.raises(BadInput, match="party 'bank': the bottom model does not accept features of shape"):
        tw.train(tw.Job([tw.FeatureParty("bank", x[0], nn.Linear(5, 8))], labels, svfl()))
    with pytest.raises(BadInput, match="party 'bank': the bottom model must give"):
        tw.train(tw.Job([tw.FeatureParty("bank", x[0], nn.Unflatten(1, (4, 4)))], labels, svfl()))
    with pytest.raises(BadInput, match="party 'shop': the top model and loss do not accept embeddings of width 5"):
        tw.train(tw.Job([tw.FeatureParty("bank", x[0], nn.Linear(16, 5))], labels, svfl()))
    wrong_widths = [tw.FeatureParty("a", x[0], nn.Linear(16, 8)), tw.FeatureParty("b", x[1], nn.Linear(16, 4))]
    with pytest.raises(BadParameter, match="concat"):
        tw.train(tw.Job(wrong_widths, labels, svfl()))


def test_shared_labels_travel_nowhere_in_private_recipes() -> None:
    result = trained(thin())
    assert {entry["kind"] for entry in result.ledger.entries()} == {
        "EMBEDDING",
        "DERIVATIVE",
        "SURROGATE_DIGEST",
        "EVALUATION",
    }


def test_class_weights_and_own_optimizers_are_used() -> None:
    x, y = digits()
    made = tw.Job(
        [tw.FeatureParty("bank", x[0], bottom(0), optimizer=tw.SGD(lr=1e-9))],
        tw.LabelParty("shop", (y > 4).long(), nn.Linear(8, 2), class_weights=[1.0, 3.0]),
        svfl(),
        optimizer=tw.SGD(lr=0.5),
        batch_size=60,
        epochs=2,
    )
    before = made.parties[0].bottom[0].weight.detach().clone()  # type: ignore[index]
    result = tw.train(made)
    assert torch.allclose(result.models["bank"][0].weight, before, atol=1e-6)  # type: ignore[index]
    assert result.history[-1]["train"]["loss"] < result.history[0]["train"]["loss"]


def test_resuming_needs_the_same_job(tmp_path: Path) -> None:
    tw.train(job(svfl()), out=tmp_path)
    for wrong in ({"seed": 1}, {"batch_size": 40}, {"optimizer": tw.SGD(lr=0.1)}, {"parties": 2}):
        with pytest.raises(BadInput, match=r"(another job|of the parties)"):
            tw.train(job(svfl(), **wrong), out=tmp_path, resume=True)
    state = max((tmp_path / "checkpoints").iterdir()) / "state.json"
    assert '"round":20' in state.read_text()
    state.write_text(state.read_text().replace('"round":20', '"round":15'))
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"round": 2')
    again = tw.train(job(svfl()), out=tmp_path, resume=True)  # the generation before, and whole lines only
    assert [row["round"] for row in again.history] == [0, 5, 10, 15, 20]


def test_a_frozen_bottom_model_is_not_trained() -> None:
    for recipe in (svfl(), cvfl(Uniform(4), local_steps=2), celu(3, 3), thin()):
        made = job(recipe)
        made.parties[0].bottom.requires_grad_(False)
        made.parties[1].bottom = nn.Sequential(nn.Identity(), nn.Linear(16, 8).requires_grad_(False))
        before = [p.clone() for p in made.parties[0].bottom.parameters()]
        result = tw.train(made)
        assert all(torch.equal(a, b) for a, b in zip(before, result.models["p0"].parameters(), strict=True))
        assert result.history[-1]["train"]["loss"] < result.history[0]["train"]["loss"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 2.5}, "batch_size must be an integer"),
        ({"eval_every": 2.5}, "eval_every must be an integer"),
        ({"eval_every": 0}, "eval_every must be 1 or more"),
        ({"batch_size": True}, "batch_size must be an integer"),
        ({"seed": "a"}, "seed must be an integer"),
        ({"seed": 2**70}, r"seed must be from 0 to 2\^63 - 1, got 1180591620717411303424"),
        ({"epochs": 1e300}, r"epochs must be below \d+, because round numbers have 32 bits; got 1e\+300"),
        ({"epochs": "3"}, "epochs must be a number"),
        ({"epochs": float("inf")}, "epochs must be a number"),
        ({"device": "foo"}, "device 'foo' is not available"),
        ({"target": ("accuracy", "hi")}, "target must be a pair"),
        ({"optimizer": torch.optim.SGD}, "optimizer must be tw.SGD"),
        ({"link": "fast"}, "link must be a tw.Link"),
        ({"batches": "sent"}, "batches must be"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        job(svfl(), **wrong)


class Remembering(nn.Module):
    """A bottom model with a buffer, or a state of its own beside it."""

    def __init__(self, module: nn.Module, kept: Any) -> None:
        super().__init__()
        self.module, self._kept = module, kept
        self.register_buffer("mark", kept if isinstance(kept, Tensor) else None)

    def forward(self, x: Tensor) -> Any:
        return self.module(x)

    def get_extra_state(self) -> Any:
        return self._kept

    def set_extra_state(self, state: Any) -> None:
        self._kept = state


class Marked(Remembering):
    get_extra_state, set_extra_state = nn.Module.get_extra_state, nn.Module.set_extra_state


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Marked(bottom(0), torch.zeros(2, dtype=torch.complex64)), "p0: mark has type torch.complex64"),
        (
            Marked(bottom(0), torch.zeros(2, dtype=torch.uint16)),
            "p0: mark has type torch.uint16, which cannot be saved",
        ),
        (Marked(bottom(0), torch.tensor([1.0, torch.nan])), "p0: mark holds NaN, which would be treated as damage"),
        (Remembering(bottom(0), {"steps": 3}), "p0: _extra_state is dict; models are saved as tensors"),
    ],
    ids=["complex", "uint16", "nan", "extra state"],
)
def test_a_model_that_could_not_be_saved_and_loaded_is_refused_before_the_start(
    module: nn.Module, message: str, tmp_path: Path
) -> None:
    described = job(svfl())
    described.parties[0].bottom = module
    with pytest.raises(BadInput, match=message.replace("p0", described.names[0])):
        tw.train(described, callbacks=[], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Spoiling(nn.Module):
    """A buffer that no output shows becomes NaN in the second round."""

    mark: Tensor

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mark", torch.ones(1))

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.mark = self.mark.sub(1).sqrt()
        return self.module(x)


def test_a_buffer_that_becomes_nan_ends_the_run_before_it_is_saved(tmp_path: Path) -> None:
    described = job(svfl(), epochs=1, eval_every=1)
    described.parties[0].bottom = Spoiling(bottom(0))
    with pytest.raises(Diverged, match=rf"{described.names[0]}: .*mark holds NaN; lower the learning rate"):
        tw.train(described, callbacks=[], out=tmp_path / "run")
    again = job(svfl(), epochs=1, eval_every=1)
    again.parties[0].bottom = Spoiling(bottom(0))
    RunDirectory(tmp_path / "run").load(again.digests(), [party.name for party in again.everyone])


def test_infinity_may_be_meant_in_a_buffer(tmp_path: Path) -> None:
    described = job(svfl(), epochs=1)
    described.parties[0].bottom = Marked(bottom(0), torch.tensor([-torch.inf]))
    tw.train(described, callbacks=[], out=tmp_path / "run")
    load_model(tmp_path / "run", described.names[0], described.parties[0].bottom)


def test_more_wrong_jobs_are_named() -> None:
    with pytest.raises(BadParameter, match="recipe must be a Recipe"):
        job(None)  # type: ignore[arg-type]
    x, y = digits()
    one = bottom(0)
    with pytest.raises(BadInput, match="two parties share one module"):
        tw.Job(
            [tw.FeatureParty("a", x[0], one), tw.FeatureParty("b", x[1], one)], tw.LabelParty("l", y, top()), svfl()
        )
    with pytest.raises(BadInput, match="that name is reserved for the top model"):
        tw.FeatureParty("top", x[0], one)
    normed = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8))
    made = tw.Job([tw.FeatureParty("a", x[0], normed)], tw.LabelParty("l", y, top()), svfl(), batch_size=359)
    with pytest.raises(BadInput, match="party 'a': batch normalisation cannot train on the last batch"):
        tw.train(made)


def test_a_top_model_of_another_dtype_works() -> None:
    made = job(svfl())
    made.label_party.top.double()
    assert tw.train(made).history[-1]["train"]["loss"] < 2.2


def test_an_interrupt_in_the_round_that_meets_the_target_still_ends_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thinwire.engine.programs.program import Control

    begin = Control.may_begin

    def press(self: Control, round: int) -> bool:
        may = begin(self, round)
        if round == 4:
            self.stop()
        return may

    given: dict[str, Any] = {"target": ("loss", 50.0), "eval_every": 5}
    monkeypatch.setattr(Control, "may_begin", press)
    # The target is met at round 0 already; look at round 5 as if it had been met there.
    first = tw.train(job(svfl(), stop=False, **given), out=tmp_path)
    assert first.interrupted
    monkeypatch.setattr(Control, "may_begin", begin)
    again = tw.train(job(svfl(), stop=True, **given), out=tmp_path, resume=True)
    assert again.history[-1]["round"] == 5


def test_the_noise_of_a_resumed_run_comes_from_the_same_secret(tmp_path: Path) -> None:
    import json
    import stat

    def secret() -> str:
        state = tmp_path / "private.json"
        assert stat.S_IMODE(state.stat().st_mode) == 0o600
        return str(json.loads(state.read_text())["noise_secret"])

    class Enough(Exception):
        pass

    def stop(event: dict[str, Any]) -> None:
        if event["round"] == 10:
            raise Enough

    with pytest.raises(Enough):
        tw.train(job(pbm(16, 0.25)), [stop], out=tmp_path)
    first = secret()
    result = tw.train(job(pbm(16, 0.25)), out=tmp_path, resume=True)
    assert secret() == first
    again = tw.train(job(pbm(16, 0.25), noise_secret=bytes.fromhex(first)))
    assert result.history[-1]["train"] == again.history[-1]["train"]
    assert tw.train(job(pbm(16, 0.25))).history[-1]["train"] != again.history[-1]["train"]


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_surrogates_that_no_longer_agree_stop_the_run_and_name_the_stream(labels: str) -> None:
    made = job(efvfl(TopK(0.2), labels=labels), eval_every=5)

    def damage(event: dict[str, Any]) -> None:
        if event["round"] == 5:
            runs[0].features[1].end.estimate()[3, 2] += 1e-6

    from thinwire.training import simulator

    class Watched(simulator.SimulatedParties):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            runs.append(self)

    runs: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thinwire.training.train.SimulatedParties", Watched)
        with pytest.raises(tw.errors.SurrogatesDiffer, match="stream 'p1/uplink', round 10"):
            tw.train(made, [damage])


@pytest.mark.long
def test_a_compiled_model_trains_and_keeps_its_names(tmp_path: Path) -> None:
    made = job(thin(overlap="ahead"))
    for party in made.parties:
        party.bottom.compile(backend="eager")
    result = tw.train(made, out=tmp_path)
    plain = trained(thin(overlap="ahead"))
    for name, module in plain.models.items():
        assert result.models[name].state_dict().keys() == module.state_dict().keys()
        for ours, theirs in zip(result.models[name].parameters(), module.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_wrapped_model_is_refused() -> None:
    made = job(svfl())
    made.parties[1].bottom = cast(nn.Module, torch.compile(made.parties[1].bottom, backend="eager"))
    with pytest.raises(BadParameter, match=r"p1: the model is wrapped by torch.compile.*call model.compile\(\)"):
        tw.train(made)
