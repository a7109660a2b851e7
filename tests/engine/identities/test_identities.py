"""Methods pinned against each other; no reference numbers needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from engine.identities.small import job, same_models, trained, weights, without_times
from thinwire.engine.compress import QSGD, Identity, TopK, Uniform
from thinwire.engine.methods import celu, cvfl, efvfl, fedbcd, pbm, svfl, thin

EVERY: dict[str, tw.Recipe] = {
    "svfl": svfl(),
    "fedbcd": fedbcd(3),
    "cvfl": cvfl(Uniform(4), local_steps=2),
    "cvfl private": cvfl(TopK(0.2), labels="private"),
    "cvfl by derivative": cvfl(TopK(0.2, select="derivative"), labels="private"),
    "cvfl by columns": cvfl(TopK(0.5, select="columns"), local_steps=2),
    "efvfl": efvfl(TopK(0.2)),
    "efvfl private": efvfl(QSGD(bits=4), labels="private"),
    "efvfl surrogates": efvfl(TopK(0.2), broadcast="surrogates", local_steps=2),
    "efvfl table": efvfl(TopK(0.1), scope="table", labels="private"),
    "efvfl update first": efvfl(TopK(0.2), order="update_first", warm_start=True),
    "efvfl table update first": efvfl(
        QSGD(bits=4), labels="private", scope="table", order="update_first", warm_start=True
    ),
    "efvfl top": efvfl(TopK(0.2), top_compressor=TopK(0.5)),
    "celu": celu(4, 4),
    "celu overlap": celu(4, 4, overlap=True),
    "celu random": celu(4, 4, sampling="random"),
    "pbm": pbm(16, 0.25),
    "thin": thin(),
    "thin cached": thin(2.0, 8.0, reuse=8),
    "thin overlap": thin(2.0, 8.0, reuse=8, overlap=True),
    "celu ahead": celu(4, 4, overlap="ahead"),
    "thin ahead": thin(2.0, 8.0, reuse=8, overlap="ahead"),
}
SECRET = bytes(range(32))


def settings(name: str) -> dict[str, Any]:
    return {"noise_secret": SECRET} if name == "pbm" else {}


@pytest.mark.parametrize("name", ["thin"])  # of all others the test below says more
def test_two_runs_of_one_job_are_the_same(name: str) -> None:
    first, second = (trained(EVERY[name], link=tw.Link(10, 5, compute_ms=2), **settings(name)) for _ in range(2))
    assert same_models(first, second)
    assert without_times(first.history) == without_times(second.history)
    assert first.ledger.entries() == second.ledger.entries()


# Each of these differs in one part from a recipe that is always resumed.
SELDOM = (
    "cvfl private",
    "cvfl by derivative",
    "efvfl private",
    "efvfl table",
    "efvfl top",
    "celu random",
    "thin overlap",
    "thin cached",
    "celu overlap",
    "cvfl by columns",
)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.long) if one in SELDOM else one for one in EVERY]
)
def test_a_run_interrupted_three_times_is_the_same(name: str, tmp_path: Path) -> None:
    given = {"link": tw.Link(10, 5, compute_ms=2), "eval_every": 3, **settings(name)}
    whole = tw.train(job(EVERY[name], **given), out=tmp_path / "whole")

    class Enough(Exception):
        pass

    def interrupt(after: int) -> Any:
        def callback(event: dict[str, Any]) -> None:
            if event["round"] == after:
                raise Enough

        return callback

    for attempt, after in enumerate((0, 9, 18)):
        with pytest.raises(Enough):
            tw.train(job(EVERY[name], **given), [interrupt(after)], out=tmp_path / "pieces", resume=attempt > 0)
    resumed = tw.train(job(EVERY[name], **given), out=tmp_path / "pieces", resume=True)
    assert same_models(whole, resumed)
    assert without_times(whole.history) == without_times(resumed.history)
    assert whole.ledger.entries() == resumed.ledger.entries()


@pytest.mark.parametrize(
    "recipe",
    [
        cvfl(Identity()),
        cvfl(Identity(), labels="private"),
        efvfl(Identity()),
        efvfl(Identity(), labels="private"),
        efvfl(TopK(1.0), labels="private"),
        cvfl(TopK(1.0)),
    ],
    ids=["cvfl", "cvfl private", "efvfl", "efvfl private", "efvfl topk 1", "cvfl topk 1"],
)
def test_without_loss_every_method_is_split_learning(recipe: tw.Recipe) -> None:
    ours = trained(recipe, epochs=10, eval_every=1)
    plain = trained(svfl(), epochs=10, eval_every=1)
    assert len(ours.history) == len(plain.history) == 51
    for a, b in zip(ours.history, plain.history, strict=True):
        assert a["train"]["loss"] == pytest.approx(b["train"]["loss"], rel=1e-5)


@pytest.mark.parametrize("fusion", ["sum", "mean", "concat"])
@pytest.mark.parametrize("batch_size", [None, 50])
def test_a_label_party_with_features_is_one_more_party_whose_bytes_are_zero(
    fusion: str, batch_size: int | None
) -> None:
    given: dict[str, Any] = {"fusion": fusion, "batch_size": batch_size}
    own, apart = trained(svfl(), own=True, **given), trained(svfl(), **given)
    left, right = weights(own), weights(apart)
    for name, tensor in right.items():
        assert torch.equal(left[name.replace("p2.", "lab.")], tensor), name
    assert own.bytes.up * 3 == apart.bytes.up * 2


def test_the_label_party_with_features_shares_its_embedding_under_shared_labels() -> None:
    result = trained(cvfl(Identity()), own=True)
    plain = trained(svfl())
    assert result.history[-1]["train"]["loss"] == pytest.approx(plain.history[-1]["train"]["loss"], rel=1e-4)
    kinds = {entry["kind"] for entry in result.ledger.entries()}
    assert "REPRESENTATIONS" in kinds


def test_overlap_changes_when_steps_happen_and_saves_link_time() -> None:
    link = tw.Link(bandwidth_mbit=10, latency_ms=20, compute_ms=5)
    waiting, overlapped, filling = (trained(celu(4, 4, overlap=o), link=link) for o in (False, True, "filling"))
    assert overlapped.summary()["link_seconds"] < waiting.summary()["link_seconds"]
    assert filling.summary()["link_seconds"] <= waiting.summary()["link_seconds"]
    assert not celu(4, 4, overlap="filling").repeatable
    assert overlapped.bytes == waiting.bytes


def test_what_is_sent_ahead_costs_no_bytes_and_saves_the_time_of_a_round_trip() -> None:
    link = tw.Link(bandwidth_mbit=1000, latency_ms=20, compute_ms=5)
    waiting, ahead = (trained(celu(1, 1, overlap=o), link=link, eval_every=1000) for o in (False, "ahead"))
    assert ahead.bytes == waiting.bytes
    assert ahead.summary()["link_seconds"] < 0.6 * waiting.summary()["link_seconds"]


def test_dropout_does_not_break_repeatability_nor_resuming(tmp_path: Path) -> None:
    def noisy() -> tw.Job:
        made = job(svfl(), eval_every=4)
        for party in made.parties:
            party.bottom = nn.Sequential(party.bottom, nn.Dropout(0.3))
        return made

    assert same_models(tw.train(noisy()), tw.train(noisy()))

    class Enough(Exception):
        pass

    def stop(event: dict[str, Any]) -> None:
        if event["round"] == 8:
            raise Enough

    with pytest.raises(Enough):
        tw.train(noisy(), [stop], out=tmp_path)
    assert same_models(tw.train(noisy(), out=tmp_path, resume=True), tw.train(noisy()))


def test_bytes_are_those_of_the_frames() -> None:
    result = trained(svfl(), batch_size=None, epochs=3, eval_every=1)
    body = 1 + 1 + 1 + 2 + 1 + 4 * 240 * 8  # tag, dtype, rank, 240, 8, floats
    assert result.bytes.up == result.bytes.down == 3 * 3 * (36 + body)
    assert result.bytes.messages == 2 * 3 * 3
    assert result.bytes.evaluation > 0


def test_thin_sends_far_fewer_bytes() -> None:
    assert trained(thin()).bytes.total * 7 < trained(svfl()).bytes.total
    assert trained(thin(), effort="fast").bytes.total < 1.3 * trained(thin()).bytes.total


def test_the_user_keeps_his_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    made = job(thin(), epochs=1)
    torch.manual_seed(5)
    tw.train(made)
    assert torch.equal(torch.rand(3), expected)


def test_a_coarser_up_step_costs_fewer_bytes() -> None:
    assert trained(thin(up_step=3.0)).bytes.up < trained(thin(up_step=1.0)).bytes.up


def test_shared_labels_travel_once_and_are_counted() -> None:
    entries = {(e["receiver"], e["kind"]): e for e in trained(cvfl(Identity())).ledger.entries()}
    for party in ("p0", "p1", "p2"):
        assert entries[party, "LABELS"]["messages"] == 1
        assert 100 < entries[party, "LABELS"]["bytes"] < 240  # 240 rows of ten classes, entropy-coded


@pytest.mark.parametrize("recipe", [svfl(), efvfl(TopK(0.2)), thin()], ids=lambda r: r.name)
def test_announced_batches_train_as_derived_ones_do(recipe: tw.Recipe) -> None:
    announced = trained(recipe, batches="announced")
    assert announced.history[-1]["train"]["loss"] < announced.history[0]["train"]["loss"]
    kinds = {entry["kind"] for entry in announced.ledger.entries()}
    assert "ROWS" in kinds
    whole = trained(svfl(), batches="announced", batch_size=None)
    assert same_models(whole, trained(svfl(), batch_size=None))


@pytest.mark.parametrize("order", ["exchange_first", "update_first"])
@pytest.mark.parametrize("own", [False, True], ids=["labels only", "own features"])
@pytest.mark.parametrize("scope", ["rows", "table"])
def test_sending_surrogates_or_symbols_down_trains_the_same_model(order: str, own: bool, scope: str) -> None:
    def recipe(broadcast: str) -> tw.Recipe:
        warm = order == "update_first"
        return efvfl(TopK(0.3), local_steps=2, order=order, scope=scope, broadcast=broadcast, warm_start=warm)

    symbols, surrogates = (trained(recipe(b), own=own) for b in ("symbols", "surrogates"))
    assert same_models(symbols, surrogates)
    assert symbols.bytes.up == surrogates.bytes.up
    assert symbols.bytes.down != surrogates.bytes.down


@pytest.mark.parametrize("select", ["derivative", "columns"])
def test_selection_by_derivative_works_for_a_label_party_with_features(select: str) -> None:
    result = trained(cvfl(TopK(0.5, select=select), local_steps=2), own=True)
    assert result.history[-1]["train"]["loss"] < result.history[0]["train"]["loss"]


def test_dropout_in_a_shared_top_model_is_resumed_to_the_bit(tmp_path: Path) -> None:
    def noisy() -> tw.Job:
        made = job(cvfl(Identity(), local_steps=2), eval_every=5)
        made.label_party.top = nn.Sequential(nn.Dropout(0.3), made.label_party.top)
        return made

    class Enough(Exception):
        pass

    def stop(event: dict[str, Any]) -> None:
        if event["round"] == 5:
            raise Enough

    with pytest.raises(Enough):
        tw.train(noisy(), [stop], out=tmp_path)
    assert same_models(tw.train(noisy(), out=tmp_path, resume=True), tw.train(noisy()))
