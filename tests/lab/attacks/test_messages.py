"""Noise and masks made wrong on purpose, in the code that runs: no audit of such a run says that they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thinwire as tw
from lab.attacks.task import TESTS, job
from lab.attacks.test_dp_release import without_noise
from thinwire.base.seeds import derive_seed
from thinwire.engine.compress import Hint, Identity, Keystream, Milestones, PoissonBinomial, Uniform
from thinwire.engine.compress.symbols import Counts
from thinwire.engine.methods import cvfl, pbm, svfl
from thinwire.engine.privacy import Context, NoiseKey, SecureSum, SecureSumSender, secure_sum
from thinwire.engine.privacy.defences import LabelDP
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.privacy.keys import KeyAgreement, derive_key
from thinwire.engine.protocols.sealing import EVALUATION, Sealing, Spending
from thinwire.engine.streams import Direct
from thinwire.lab.attacks import audit, audit_job, audit_messages
from thinwire.lab.attacks.dp_release import Verdict
from thinwire.lab.attacks.findings import join_verdicts
from thinwire.lab.attacks.messages import MessageAudit, list_unseen
from thinwire.training import simulator

Patch = pytest.MonkeyPatch
SUMMED = replace(cvfl(Uniform(4, bounds=(-1.0, 1.0)), labels="private"), aggregation=SecureSum())
NOISY = pbm(4, 0.05)  # epsilon about 2 a release: these samples could refute it


def judge(recipe: tw.Recipe, patch: Patch) -> tuple[Verdict, tuple[str, ...]]:
    """As an audit of the run made anew does, on fewer releases."""
    patch.setattr(audit, "_MOST_DRAWS", 300_000)
    described = job(recipe, epochs=2)
    release, messages = audit._release(described), audit_messages(described)
    assert messages is not None
    return join_verdicts([messages] if release is None else [release, messages]), messages.wrong


# Noise ---------------------------------------------------------------------------------------------------------

draw = PoissonBinomial.compress
for_round = NoiseKey.for_round


def average_of_four(mechanism: PoissonBinomial, x: Tensor, rng: Any, *_: Any) -> Counts:
    drawn = draw(mechanism, x.repeat(4, 1), rng)
    mean = np.rint(drawn.counts.reshape(4, -1).mean(axis=0)).astype(drawn.counts.dtype)
    return replace(drawn, shape=tuple(x.shape), counts=mean)


def twice_the_bias(mechanism: PoissonBinomial, x: Tensor, rng: Any, *_: Any) -> Counts:
    return replace(draw(replace(mechanism, beta=2 * mechanism.beta), x, rng), beta=mechanism.beta)


def same_every_round(key: NoiseKey, run: int, round: int, attempt: int, stream: str) -> Keystream:
    return for_round(key, run, 0, attempt, stream.split(" ", maxsplit=1)[0])


def same_every_other_round(key: NoiseKey, run: int, round: int, attempt: int, stream: str) -> Keystream:
    return for_round(key, run, round % 2, attempt, stream.split(" ", maxsplit=1)[0])


def from_the_training_seed(sealing: Sealing, round: int, _: Tensor, use: str = "") -> Keystream:
    return Keystream.from_seed(derive_seed(0, sealing._context.me, round, use))


def same_for_all(sealing: Sealing, round: int, _: Tensor, use: str = "") -> Keystream:
    return NoiseKey(bytes(32)).for_round(sealing._context.run, round, 0, use)


def by_row(mechanism: PoissonBinomial, x: Tensor, *_: Any) -> Counts:
    """From what the row holds: alike at every look while the model hardly moves."""
    signs, kinds = np.unique(x.detach().numpy() > 0, axis=0, return_inverse=True)
    counts = draw(mechanism, x, Keystream.from_seed(0))
    for number, sign in enumerate(signs):
        rows = torch.from_numpy(np.flatnonzero(kinds == number))
        seed = derive_seed(0, sign.tobytes().hex())
        # One draw for all rows of a kind, however many they are.
        drawn = draw(mechanism, x[rows[:1]], Keystream.from_seed(seed))
        counts.counts.reshape(x.shape)[rows] = drawn.counts
    return counts


def in_one_round(mechanism: PoissonBinomial, x: Tensor, rng: Any, hint: Hint = Hint()) -> Counts:
    """Of twenty: half the variance."""
    twice = 2 if hint.round == 7 else 1
    drawn = draw(mechanism, x.repeat(twice, 1), rng)
    mean = np.rint(drawn.counts.reshape(twice, -1).mean(axis=0)).astype(drawn.counts.dtype)
    return replace(drawn, shape=tuple(x.shape), counts=mean)


def not_for_tests(mechanism: PoissonBinomial, x: Tensor, rng: Any, *_: Any) -> Counts:
    return (without_noise if len(x) == TESTS else draw)(mechanism, x, rng)


def same_every_eighth_round(key: NoiseKey, run: int, round: int, attempt: int, stream: str) -> Keystream:
    return for_round(key, run, round % 8, attempt, stream.split(" ", maxsplit=1)[0])


NOISE: dict[str, tuple[Any, str, Any, str]] = {
    "half in one round": (PoissonBinomial, "compress", in_one_round, "noise of shop does not have the variance"),
    "none on test embeddings": (
        PoissonBinomial,
        "compress",
        not_for_tests,
        "test embeddings does not have the variance",
    ),
    "reused every eighth round": (NoiseKey, "for_round", same_every_eighth_round, "repeats from round to round"),
    "no noise": (PoissonBinomial, "compress", without_noise, "does not have the variance"),
    "a fourth of the variance": (PoissonBinomial, "compress", average_of_four, "does not have the variance"),
    "a larger signal": (PoissonBinomial, "compress", twice_the_bias, "do not have the mean"),
    "reused": (NoiseKey, "for_round", same_every_round, "repeats from round to round"),
    "reused now and then": (NoiseKey, "for_round", same_every_other_round, "repeats from round to round"),
    "reused for a row": (PoissonBinomial, "compress", by_row, "repeats when a row is used again"),
    "seeded": (Sealing, "noise", from_the_training_seed, "noise of bank can be computed from the training seed"),
    "shared": (Sealing, "noise", same_for_all, "noise of bank and that of shop are correlated"),
}
SHORT = ("half in one round", "none on test embeddings", "seeded", "shared")


@pytest.mark.parametrize(
    "defect", [one if one in SHORT else pytest.param(one, marks=pytest.mark.long) for one in NOISE]
)
def test_noise_that_is_wrong_is_refuted(defect: str, monkeypatch: Patch) -> None:
    place, name, wrong, said = NOISE[defect]
    monkeypatch.setattr(place, name, wrong)
    verdict, sentences = judge(NOISY, monkeypatch)
    assert verdict == "refuted"
    assert any(said in sentence for sentence in sentences), sentences


# Masks ---------------------------------------------------------------------------------------------------------

begin = SecureSumSender.__init__


def keep_masks(choose: Callable[[str, str], bool]) -> Callable[..., None]:
    """Of those pairs only; the sum stays right."""

    def begin_with(sender: SecureSumSender, me: str, parties: Any, keys: Any) -> None:
        begin(sender, me, parties, keys)
        others = [party for party in parties if party != me]
        sender._masks = [mask for mask, other in zip(sender._masks, others, strict=True) if choose(me, other)]

    return begin_with


class Narrow(Keystream):
    def words(self, count: int) -> Any:
        return super().words(count) & np.uint32(3)


def known_keys(agreement: KeyAgreement, publics: Any) -> dict[str, bytes]:
    pairs = {party: "/".join(sorted((agreement._me, party))) for party in publics}
    return {party: sha256(pair.encode()).digest() for party, pair in pairs.items()}


seal = SecureSumSender.seal


def bare_tests(sender: SecureSumSender, symbols: Any, adding: Any, context: Context) -> Any:
    kept = sender._masks
    sender._masks = [] if context.recipe.endswith(EVALUATION) else kept
    try:
        return seal(sender, symbols, adding, context)
    finally:
        sender._masks = kept


COUPLES = ({"bank", "shop"}, {"clinic", "tax"})
MASKS: dict[str, tuple[Any, str, Any, str]] = {
    "none": (
        SecureSumSender,
        "__init__",
        keep_masks(lambda me, other: me == other),
        "bank sends under its masks is not",
    ),
    "none at one party": (
        SecureSumSender,
        "__init__",
        keep_masks(lambda me, other: "shop" not in (me, other)),
        "shop sends under its masks is not uniform",
    ),
    "in couples": (
        SecureSumSender,
        "__init__",
        keep_masks(lambda me, other: {me, other} in COUPLES),
        "masks of bank and shop cancel",
    ),
    "none on test embeddings": (SecureSumSender, "seal", bare_tests, "bank sends under its masks is not uniform"),
    "reused": (secure_sum, "derive_key", lambda key, _: derive_key(key, b""), "masks of bank repeat from round"),
    "narrow": (secure_sum, "Keystream", Narrow, "bank sends under its masks is not uniform"),
    "seeded": (KeyAgreement, "pair_keys", known_keys, "masks of bank can be computed from the training seed"),
}


@pytest.mark.parametrize("defect", MASKS)
def test_masks_that_are_wrong_are_refuted(defect: str, monkeypatch: Patch) -> None:
    place, name, wrong, said = MASKS[defect]
    monkeypatch.setattr(place, name, wrong)
    verdict, sentences = judge(SUMMED if defect == "none" else NOISY, monkeypatch)
    assert verdict == "refuted"
    assert any(said in sentence for sentence in sentences), sentences


def test_one_secret_for_every_run_is_refuted(monkeypatch: Patch) -> None:
    monkeypatch.setattr(simulator, "own_secret", lambda _, party: sha256(party.encode()).digest())
    verdict, sentences = judge(NOISY, monkeypatch)
    assert [one for one in sentences if "can be computed from the training seed" not in one] == []
    assert verdict == "refuted"


def test_secrets_that_everybody_knows_are_refuted(monkeypatch: Patch) -> None:
    monkeypatch.setattr("secrets.token_bytes", bytes)
    assert judge(SUMMED, monkeypatch)[0] == "refuted"


def test_rows_that_are_not_charged_are_refuted(monkeypatch: Patch) -> None:
    charge = Spending.release

    def wrongly(spending: Spending, round: int, rows: Tensor, use: str) -> None:
        """No test rows, and the first training row in every other one's place."""
        if use != EVALUATION:
            charge(spending, round, torch.zeros_like(rows[:1]), use)

    monkeypatch.setattr(Spending, "release", wrongly)
    verdict, sentences = judge(NOISY, monkeypatch)
    assert verdict == "refuted"
    assert sentences[0] == "bank is not charged for 4998 rows it sends"  # of 5,000; two are the first row


# Without defects ----------------------------------------------------------------------------------------------


FEWER_BITS = replace(SUMMED, uplink=Direct(Uniform(Milestones((0, 8), (10, 4)), bounds=(-1.0, 1.0))))


@pytest.mark.parametrize(
    "recipe", [NOISY, pbm(1, 0.1), SUMMED, FEWER_BITS], ids=["noisy", "one trial", "exact", "fewer bits"]
)
def test_noise_and_masks_as_they_are_hold(recipe: tw.Recipe, monkeypatch: Patch) -> None:
    assert judge(recipe, monkeypatch) == ("holds", ())


def test_what_was_not_looked_at_is_inconclusive(monkeypatch: Patch) -> None:
    """A claim that is too large to refute; messages that are too few; a run that is not made anew."""
    assert judge(pbm(16, 0.2), monkeypatch) == ("inconclusive", ())
    once = audit_messages(job(SUMMED, batch_size=None, epochs=1))
    assert once is not None
    assert once.verdict == "inconclusive"
    assert audit_job(job(SUMMED), rows=60).verdict == "inconclusive"
    assert audit_job(job(svfl()), rows=60).verdict is None
    assert audit_messages(job(cvfl(Identity(), labels="private"))) is None


def test_an_audit_names_what_it_did_not_look_at() -> None:
    """Defects in the last rounds, in a single small one, in predictions, in a defence: all hold as far as it sees."""
    described = job(replace(NOISY, defence=LabelDP(1.0)), batch_size=4, epochs=2, training=DPBottom(1.0, 1.0))
    unseen = "; ".join(list_unseen(described, MessageAudit(rounds=32, values=32 * 32, wrong=())))
    for part in (
        "rounds 33 to 500",
        "single rounds: 32 values are too few",
        "predictions, the run's own secret, charges on its disk",
        "the noise of LabelDP(epsilon=1.0)",
        "the noise of private steps",
    ):
        assert part in unseen
    assert list(list_unseen(job(svfl()), None)) == []
    shown = audit_job(job(replace(svfl(), defence=LabelDP(1.0))), rows=60)
    assert "not examined: the noise of LabelDP(epsilon=1.0)" in " ".join(shown.notes)
