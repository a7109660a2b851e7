"""A secure sum trains as the plain sum does, on whatever adds, and with private or shared labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from engine.identities.small import job, same_models, trained, without_times
from thinwire.engine.compress import StdGrid, Uniform
from thinwire.engine.methods import celu, cvfl, efvfl, pbm, svfl
from thinwire.engine.privacy import Context, Frozen, SecureSum, SecureSumSender
from thinwire.engine.privacy import keys as keys_module
from thinwire.engine.streams import Direct

LEVELS = Uniform(8, dither=False, bounds=(-3, 3))
GRID = StdGrid(0.5, scale=0.1, limit=60)
SUMMED: dict[str, tw.Recipe] = {
    "levels": replace(svfl(), uplink=Direct(LEVELS)),
    "dithered levels": replace(svfl(), uplink=Direct(Uniform(6, bounds=(-1, 1)))),
    "grid": replace(svfl(), uplink=Direct(GRID)),
    "cached steps": replace(celu(4, 4, overlap=True), uplink=Direct(GRID)),
    "cached steps, sent ahead": replace(celu(4, 4, overlap="ahead"), uplink=Direct(GRID)),
    "error feedback": efvfl(GRID, labels="private"),
    "error feedback with a low limit": efvfl(StdGrid(0.5, scale=0.1, limit=3), labels="private"),
    "error feedback of levels, warm": efvfl(LEVELS, labels="private", warm_start=True),
    "shared labels": cvfl(LEVELS, local_steps=3),
    "shared labels, error feedback": efvfl(GRID, local_steps=2),
    "shared labels, error feedback, warm": efvfl(LEVELS, warm_start=True),
}
SECRET = bytes(range(32))


def summed(name: str) -> tw.Recipe:
    return replace(SUMMED[name], aggregation=SecureSum())


# With dither the noise comes from each party's own secret, so that the draws differ from a plain run's.
@pytest.mark.parametrize("name", [name for name in SUMMED if "dither" not in name])
@pytest.mark.parametrize(
    "own", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "the label party has features"]
)
def test_a_secure_sum_is_a_plain_sum(name: str, own: bool) -> None:
    given: dict[str, Any] = {"parties": 4, "own": own, "epochs": 4, "eval_every": 4, "noise_secret": SECRET}
    under_masks, plain = trained(summed(name), **given), trained(SUMMED[name], **given)
    assert len(under_masks.history) == len(plain.history) == 6
    for a, b in zip(under_masks.history, plain.history, strict=True):
        assert a["train"]["loss"] == pytest.approx(b["train"]["loss"], rel=2e-3)
        # What an evaluation sends is whole, whatever a round's message cuts off.
        assert a["test"]["loss"] == pytest.approx(b["test"]["loss"], rel=0.03)
    assert under_masks.history[-1]["train"]["loss"] < 0.8 * under_masks.history[0]["train"]["loss"]


def test_dithered_levels_learn_under_masks() -> None:
    result, plain = trained(summed("dithered levels"), epochs=20), trained(svfl(), epochs=20)
    loss = result.history[-1]["train"]["loss"]
    assert loss == pytest.approx(plain.history[-1]["train"]["loss"], rel=0.1)
    assert loss < 0.5 * result.history[0]["train"]["loss"]


@pytest.mark.parametrize("name", SUMMED)
def test_a_resumed_run_is_the_same(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"eval_every": 3, "noise_secret": SECRET}
    whole = tw.train(job(summed(name), **given))

    class Enough(Exception):
        pass

    def interrupt(event: dict[str, Any]) -> None:
        if event["round"] == 9:
            raise Enough

    with pytest.raises(Enough):
        tw.train(job(summed(name), **given), [interrupt], out=tmp_path)
    resumed = tw.train(job(summed(name), **given), out=tmp_path, resume=True)
    assert same_models(whole, resumed)
    assert without_times(whole.history) == without_times(resumed.history)
    assert whole.ledger.entries() == resumed.ledger.entries()


@pytest.mark.parametrize("name", SUMMED)
def test_no_single_embedding_goes_up_or_down(name: str) -> None:
    """Up: masked bodies only. Down: one body for the sum, not one per party."""
    entries = trained(summed(name), parties=4, epochs=1).ledger.entries()
    plain = trained(SUMMED[name], parties=4, epochs=1).ledger.entries()

    def size(rows: list[dict[str, Any]], kind: str) -> int:
        return sum(row["bytes"] for row in rows if row["kind"] == kind)

    assert size(entries, "KEYS") > 0
    assert size(plain, "KEYS") == 0
    assert size(entries, "SURROGATE_DIGEST") == 0
    if "shared" in name:
        assert size(entries, "REPRESENTATIONS") < size(plain, "REPRESENTATIONS")


@pytest.mark.parametrize("name", ["levels", "error feedback of levels, warm", "shared labels"])
def test_no_context_repeats_in_a_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, evaluations and the warm start: every sealed message has a context of its own."""
    contexts: list[bytes] = []
    seal = SecureSumSender.seal

    def noted(self: SecureSumSender, symbols: Any, adding: Any, context: Context) -> Any:
        if self._me == "p0":
            contexts.append(context.to_bytes())
        return seal(self, symbols, adding, context)

    monkeypatch.setattr(SecureSumSender, "seal", noted)
    trained(summed(name), eval_every=2)
    assert len(contexts) == len(set(contexts)) == 20 + 11 + int("warm" in name)


def test_pbm_draws_new_noise_for_every_release() -> None:
    """The same embeddings, of frozen models, are never sent twice under the same noise."""
    keys: list[bytes] = []
    derive = keys_module.derive_key

    def noted(key: bytes, info: bytes) -> bytes:
        if b"thinwire noise 1" in info:
            keys.append(derive(key, info))
        return derive(key, info)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "derive_key", noted)
        trained(pbm(4, 0.1), eval_every=2, training=Frozen())
    releases = [key for key in keys if keys.count(key) > 1]
    assert not releases
    assert len(keys) >= 3 * (20 + 11)
