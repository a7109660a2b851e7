"""Secure sum: the sum is exact, and every part of it is uniform noise to whoever lacks the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from engine.privacy.pairs import pair_keys
from thinwire import wire
from thinwire.base.errors import BadParameter, BadState, IncompatibleRecipe, Malformed
from thinwire.engine.compress import Codebook, Compressor, Keystream, PoissonBinomial, StdGrid, TopK, Uniform
from thinwire.engine.compress.adding import AddingCounts
from thinwire.engine.compress.symbols import Counts, Masked, Symbols
from thinwire.engine.methods import cvfl
from thinwire.engine.privacy import (
    Context,
    Labels,
    NoiseKey,
    Plain,
    SecureSum,
    SecureSumSender,
    open_sum,
    ring_modulus,
)

SECRET = bytes(range(32))
THREE = ("bank", "shop", "clinic")


def names(parties: int) -> tuple[str, ...]:
    return tuple(f"party {place}" for place in range(parties))


def context_of(parties: Sequence[str], trials: int, **changes: Any) -> Context:
    modulus = ring_modulus(len(parties), trials)
    return replace(Context(1, "digest", 5, 0, 77, tuple(parties), trials, modulus), **changes)


def senders(parties: Sequence[str]) -> list[SecureSumSender]:
    keys = pair_keys(parties, SECRET)
    return [SecureSum(min_parties=2).open_party(party, parties, keys[party]) for party in parties]


def counts_of(values: npt.ArrayLike, trials: int, shape: tuple[int, ...] | None = None) -> Counts:
    counts = np.asarray(values)
    return Counts(shape or counts.shape, counts.reshape(-1), trials + 1, trials, 0.125, 1.0)


def adding(trials: int) -> AddingCounts:
    return AddingCounts(trials, 0.125, 1.0)


def seal(sender: SecureSumSender, counts: Symbols, context: Context) -> Masked:
    return sender.seal(counts, adding(context.top), context)


def opened(sealed: Sequence[Symbols], context: Context) -> Counts:
    total = open_sum(sealed, adding(context.top), context)
    assert isinstance(total, Counts)
    return total


def random_counts(parties: int, trials: int, shape: tuple[int, ...] = (64, 8)) -> list[Counts]:
    rng = np.random.default_rng(parties * 1000 + trials)
    return [counts_of(rng.integers(0, trials + 1, shape, dtype=np.uint16), trials) for _ in range(parties)]


def sealed_by_all(counts: Sequence[Counts], context: Context) -> list[Masked]:
    return [seal(sender, mine, context) for sender, mine in zip(senders(context.parties), counts, strict=True)]


def plain_sum(counts: Sequence[Counts], context: Context) -> Counts:
    total = np.sum([mine.counts.astype(np.int64) for mine in counts], axis=0)
    return replace(counts[0], counts=total, modulus=len(counts) * context.top + 1, parties=len(counts))


def chi_square(values: npt.NDArray[Any], modulus: int) -> float:
    """In standard deviations from what a uniform distribution gives."""
    found = np.bincount(values.astype(np.int64), minlength=modulus)
    assert found.size == modulus
    even = values.size / modulus
    return float((((found - even) ** 2 / even).sum() - (modulus - 1)) / np.sqrt(2 * (modulus - 1)))


def correlation(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    return float(np.corrcoef(one.astype(float), other.astype(float))[0, 1])


# The sum is exact -------------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [1, 4, 16, 64])
@pytest.mark.parametrize("parties", range(2, 13))
def test_the_secure_sum_is_the_plain_sum_bit_for_bit(parties: int, trials: int) -> None:
    context = context_of(names(parties), trials)
    everything_won = [counts_of(np.full((3, 5), trials), trials)] * parties
    nothing_won = [counts_of(np.zeros((3, 5), np.uint8), trials)] * parties
    for counts in (random_counts(parties, trials), everything_won, nothing_won):
        bodies = [wire.encode(sealed) for sealed in sealed_by_all(counts, context)]
        received = [wire.decode(body) for body in bodies]
        total, expected = opened(received, context), plain_sum(counts, context)
        assert total == expected
        assert torch.equal(total.to_tensor(), expected.to_tensor())
        assert total.to_tensor().shape == counts[0].shape
        assert wire.decode(wire.encode(total)) == total


@given(st.data(), st.integers(2, 6), st.sampled_from([1, 2, 7, 300, 65535]))
def test_any_counts_add_up(data: st.DataObject, parties: int, trials: int) -> None:
    rows = data.draw(
        st.lists(st.lists(st.integers(0, trials), min_size=3, max_size=3), min_size=parties, max_size=parties)
    )
    context = context_of(names(parties), trials)
    total = opened(sealed_by_all([counts_of(row, trials) for row in rows], context), context)
    assert total.counts.tolist() == np.sum(rows, axis=0).tolist()


def test_blocks_do_not_show_in_the_masks() -> None:
    context = context_of(THREE, 1)
    counts = random_counts(3, 1, (70_000, 2))
    assert opened(sealed_by_all(counts, context), context) == plain_sum(counts, context)


@pytest.mark.parametrize("fill", ["random", "nothing won", "everything won"])
def test_a_million_sums(fill: str) -> None:
    context = context_of(names(4), 16)
    counts = random_counts(4, 16, (1_000_000,))
    if fill != "random":
        counts = [counts_of(np.full(1_000_000, 16 if fill == "everything won" else 0, np.uint8), 16)] * 4
    assert opened(sealed_by_all(counts, context), context) == plain_sum(counts, context)


def test_the_sum_stands_for_the_sum_of_the_embeddings() -> None:
    x = [torch.full((200, 50), value) for value in (-0.9, 0.1, 0.5)]
    compressor = PoissonBinomial(trials=16, beta=0.125)
    noise = [NoiseKey(bytes([place]) * 32).for_round(1, 5, 0, THREE[place]) for place in range(3)]
    counts = [compressor.compress(mine, rng) for mine, rng in zip(x, noise, strict=True)]
    context = context_of(THREE, 16)
    total = opened(sealed_by_all(counts, context), context).to_tensor()
    deviation = (3 / (4 * 0.125**2 * 16)) ** 0.5
    assert float(total.mean()) == pytest.approx(-0.3, abs=5 * deviation / 100)
    assert torch.allclose(total, sum(mine.to_tensor() for mine in counts) + torch.zeros(()), atol=1e-5)


def additive() -> list[Compressor]:
    return [
        PoissonBinomial(16, 0.2),
        Uniform(1, bounds=(-1, 1)),
        Uniform(4, bounds=(-1, 1)),
        Uniform(10, dither=False, bounds=(-1, 2)),
        StdGrid(0.5, scale=0.1, limit=40),
        StdGrid(0.5, stochastic=True, scale=0.2, limit=3),
    ]


@pytest.mark.parametrize("compressor", additive(), ids=str)
@pytest.mark.parametrize("parties", [3, 12])
def test_a_secure_sum_of_any_additive_symbols_is_their_sum(compressor: Compressor, parties: int) -> None:
    rule = compressor.adding(7)
    assert rule is not None
    context = context_of(names(parties), rule.top)
    x = [torch.tanh(torch.randn(33, 5, generator=torch.Generator().manual_seed(i))) for i in range(parties)]
    x[0] = torch.zeros(33, 5)  # StdGrid has symbols of its own for it
    symbols = [compressor.compress(mine, Keystream(bytes([i]) * 32)) for i, mine in enumerate(x)]
    ends = zip(senders(names(parties)), symbols, strict=True)
    bodies = [wire.encode(sender.seal(one, rule, context)) for sender, one in ends]
    total = open_sum([wire.decode(body) for body in bodies], rule, context)
    expected = torch.stack([one.to_tensor().double() for one in symbols]).sum(0)
    assert torch.allclose(total.to_tensor().double(), expected, atol=1e-5 * parties)
    assert wire.decode(wire.encode(total)) == total
    bits = context.modulus.bit_length() - 1
    assert all(len(body) <= 1.02 * 33 * 5 * bits / 8 + 256 for body in bodies)


@pytest.mark.parametrize(
    "compressor",
    [
        Uniform(4),
        StdGrid(1.0),
        StdGrid(1.0, scale=1.0),
        StdGrid(1.0, limit=3),
        StdGrid(0.5, scale="largest", limit=3),
        TopK(0.5),
        Codebook(),
    ],
    ids=str,
)
def test_without_a_fixed_scale_and_range_nothing_adds(compressor: Compressor) -> None:
    assert compressor.adding() is None
    with pytest.raises(IncompatibleRecipe, match=r"SecureSum adds integers on one scale; .* are not additive"):
        replace(cvfl(compressor), aggregation=SecureSum()).check(3, "sum")


def test_a_limit_cuts_off() -> None:
    symbols = StdGrid(1.0, scale=1.0, limit=2).compress(
        torch.tensor([[-9.0, -1.2, 0.2, 1.6, 1e30]]), Keystream(SECRET)
    )
    assert symbols.to_tensor().tolist() == [[-2, -1, 0, 2, 2]]


def test_a_masked_message_stands_for_nothing_alone() -> None:
    context = context_of(THREE, 4)
    with pytest.raises(Malformed, match="mean nothing on their own"):
        sealed_by_all(random_counts(3, 4), context)[0].to_tensor()


# The parts are noise ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("parties", "trials"), [(2, 1), (3, 4), (4, 16), (12, 64)])
def test_sealed_counts_are_uniform_and_say_nothing_of_the_counts(parties: int, trials: int) -> None:
    context = context_of(names(parties), trials)
    counts = random_counts(parties, trials, (1 << 17,))
    for mine, sealed in zip(counts, sealed_by_all(counts, context), strict=True):
        assert sealed.modulus == context.modulus
        assert abs(chi_square(sealed.values, context.modulus)) < 5
        assert abs(correlation(mine.counts, sealed.values)) < 5 / 2**8.5
        # Given a count, the sealed one is as uniform as before.
        won = sealed.values[mine.counts == trials]
        assert abs(chi_square(won, context.modulus)) < 5


def test_a_hundred_epochs_do_not_average_the_masks_away() -> None:
    counts = random_counts(3, 16, (4096,))
    ends = senders(THREE)
    mean = np.zeros(4096)
    for round in range(100):
        mean += seal(ends[1], counts[1], context_of(THREE, 16, round=round)).values
    assert abs(correlation(mean, counts[1].counts)) < 5 / 64


@pytest.mark.parametrize("missing", range(4))
def test_masks_cancel_in_the_full_set_alone(missing: int) -> None:
    parties, trials = names(4), 16
    context = context_of(parties, trials)
    counts = random_counts(4, trials, (1 << 16,))
    sealed = sealed_by_all(counts, context)
    del sealed[missing], counts[missing]
    subset = np.stack([part.values for part in sealed]).sum(axis=0, dtype=np.int64) % context.modulus
    assert abs(chi_square(subset, context.modulus)) < 5
    assert abs(correlation(subset, np.sum([mine.counts for mine in counts], axis=0))) < 5 / 2**8
    with pytest.raises(BadParameter, match="3 sealed messages of 4 parties"):
        opened(sealed, context)
    # Nor do three pass for a sum of three.
    with pytest.raises(Malformed):
        opened(sealed, context_of([party for party in parties if party != parties[missing]], trials))


@pytest.mark.parametrize(
    "changes",
    [{"run": 2}, {"recipe": "other"}, {"round": 6}, {"attempt": 1}, {"rows_digest": 78}],
    ids=lambda changes: next(iter(changes)),
)
def test_every_part_of_the_context_changes_every_mask(changes: dict[str, Any]) -> None:
    context, other = context_of(THREE, 4), context_of(THREE, 4, **changes)
    counts = random_counts(3, 4)
    one, two = sealed_by_all(counts, context), sealed_by_all(counts, other)
    for mine, theirs in zip(one, two, strict=True):
        assert abs(correlation(mine.values, theirs.values)) < 5 / 512**0.5
    with pytest.raises(Malformed, match=r"round 5: a sum of 1[345], above the maximum of 12"):
        opened([one[0], two[1], one[2]], context)


def test_the_mask_is_this_one() -> None:
    keys = pair_keys(THREE, SECRET)
    context = context_of(THREE, 64)
    counts = counts_of(np.arange(40) % 65, 64, (8, 5))

    def mask(key: bytes) -> npt.NDArray[np.int64]:
        stream_key = HKDF(SHA256(), 32, salt=None, info=context.to_bytes()).derive(key)
        stream = Cipher(algorithms.AES(stream_key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * 40))
        return np.frombuffer(stream, "<u4").astype(np.int64) % 256

    with_bank, with_clinic = mask(keys["shop"]["bank"]), mask(keys["shop"]["clinic"])
    expected = (counts.counts - with_bank + with_clinic) % 256
    sealed = seal(senders(THREE)[1], counts, context)
    assert sealed == Masked((8, 5), expected, 256)


def test_a_sealed_message_costs_its_bits() -> None:
    for parties, trials in ((2, 4), (4, 16), (12, 64), (12, 256)):
        context = context_of(names(parties), trials)
        sealed = sealed_by_all(random_counts(parties, trials, (256, 16)), context)
        bits = context.modulus.bit_length() - 1
        for part in sealed:
            assert len(wire.encode(part)) <= 1.02 * 256 * 16 * bits / 8 + 256


# A context serves once --------------------------------------------------------------------------------


def test_a_retry_is_byte_identical() -> None:
    sender, context = senders(THREE)[0], context_of(THREE, 4)
    counts = random_counts(3, 4)[0]
    first = wire.encode(seal(sender, counts, context))
    same_counts_wider = replace(counts, counts=counts.counts.astype(np.int64))
    assert wire.encode(seal(sender, same_counts_wider, context)) == first
    assert len(sender.state()["contexts"]) == 1


def test_a_context_does_not_serve_other_counts() -> None:
    sender, context = senders(THREE)[0], context_of(THREE, 4)
    counts = random_counts(3, 4, (6, 4))[0]
    first = seal(sender, counts, context)
    one_off = counts.counts.copy()
    one_off[-1] = (one_off[-1] + 1) % 5
    for other in (
        replace(counts, counts=one_off),
        replace(counts, shape=(4, 6)),
        replace(counts, shape=(1, 4), counts=counts.counts[:4]),
    ):
        with pytest.raises(BadParameter, match="'bank' has already sealed other integers in round 5, attempt 0"):
            seal(sender, other, context)
    assert seal(sender, counts, context) == first  # a refusal leaves the record as it was
    seal(sender, replace(counts, counts=one_off), replace(context, attempt=1))


def test_the_record_outlives_the_process() -> None:
    counts = random_counts(3, 4)
    before = senders(THREE)[0]
    contexts = [context_of(THREE, 4, round=round) for round in range(5)]
    sealed = [seal(before, counts[0], context) for context in contexts]
    after = senders(THREE)[0]
    after.load(before.state())
    assert [seal(after, counts[0], context) for context in contexts] == sealed
    with pytest.raises(BadParameter, match="round 3"):
        seal(after, counts[1], contexts[3])
    for name, table in before.state().items():
        assert table.dtype == torch.uint8
        assert table.shape == (5, 32)
        assert torch.equal(table, after.state()[name])


def test_loading_forgets_nothing() -> None:
    counts, sender = random_counts(3, 4), senders(THREE)[0]
    empty = sender.state()
    seal(sender, counts[0], context_of(THREE, 4))
    sender.load(empty)
    with pytest.raises(BadParameter, match="already sealed"):
        seal(sender, counts[1], context_of(THREE, 4))
    rival = senders(THREE)[0]
    seal(rival, counts[1], context_of(THREE, 4))
    with pytest.raises(BadState, match="other integers"):
        sender.load(rival.state())


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "holds \\[\\]"),
        ({"contexts": torch.zeros(1, 32, dtype=torch.uint8)}, "holds \\['contexts'\\]"),
        ({name: torch.zeros(1, 32) for name in ("contexts", "sealed")}, "float32 \\(1, 32\\)"),
        ({name: torch.zeros(1, 31, dtype=torch.uint8) for name in ("contexts", "sealed")}, "\\(1, 31\\)"),
        ({name: torch.zeros(2, 32, dtype=torch.uint8) for name in ("contexts", "sealed")}, "1 contexts"),
        (
            {"contexts": torch.zeros(1, 32, dtype=torch.uint8), "sealed": torch.zeros(2, 32, dtype=torch.uint8)},
            "1 contexts in the record, 2 sealed",
        ),
    ],
)
def test_records_that_cannot_be_are_refused(state: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(BadState, match=says):
        senders(THREE)[0].load(state)


# What is refused --------------------------------------------------------------------------------------


def test_too_few_parties_are_refused_with_the_way_out() -> None:
    two = ("bank", "shop")
    keys = pair_keys(two, SECRET)
    with pytest.raises(IncompatibleRecipe, match=r"needs 3 parties.*there are 2 \(bank, shop\).*Add parties"):
        SecureSum().open_party("bank", two, keys["bank"])
    with pytest.raises(IncompatibleRecipe, match="needs 2 parties"):
        SecureSumSender("bank", ("bank",), {})
    SecureSum().require(THREE)
    for few in (1, 0, 2.5):
        with pytest.raises(BadParameter, match="min_parties must be"):
            SecureSum(min_parties=few)  # type: ignore[arg-type]


@pytest.mark.parametrize("compressor", [TopK(0.5), Uniform(4), Uniform(4, bounds=(-5, 5)), StdGrid(1.0), Codebook()])
def test_symbols_that_do_not_add_are_refused(compressor: Compressor) -> None:
    symbols = compressor.compress(torch.randn(8, 4).clamp(-5, 5), Keystream(SECRET))
    with pytest.raises(IncompatibleRecipe, match=r"SecureSum adds integers .* not additive here. Use PoissonBin"):
        seal(senders(THREE)[0], symbols, context_of(THREE, 4))


def test_what_is_not_a_partys_own_is_refused() -> None:
    sender, context = senders(THREE)[0], context_of(THREE, 4)
    counts = random_counts(3, 4)
    sealed = sealed_by_all(counts, context)
    for other in (
        sealed[0],
        opened(sealed, context),
        random_counts(3, 16)[0],
        replace(counts[0], beta=0.25),
        replace(counts[0], bound=2.0),
    ):
        with pytest.raises(IncompatibleRecipe, match="not additive here"):
            seal(sender, other, context)
    for out_of_range in (counts_of([0, 5], 4), counts_of([0, -1], 4)):
        with pytest.raises(BadParameter, match="integers outside 0 to 4"):
            seal(sender, out_of_range, context)
    with pytest.raises(BadParameter, match="integers up to 16, the context has 4"):
        sender.seal(random_counts(3, 16)[0], adding(16), context)
    with pytest.raises(BadParameter, match="the keys are for"):
        seal(sender, counts[0], context_of(THREE[::-1], 4))
    assert len(sender.state()["contexts"]) == 0


KEYS = pair_keys(THREE, SECRET)["shop"]


@pytest.mark.parametrize(
    ("me", "parties", "keys", "says"),
    [
        ("mill", THREE, KEYS, "'mill' must be one of different parties"),
        ("shop", (*THREE, "bank"), KEYS, "one of different parties"),
        ("shop", THREE, {"bank": KEYS["bank"]}, "a key for each other party, got keys for \\['bank'\\]"),
        ("bank", THREE, KEYS, "a key for each other party"),
        ("shop", THREE, KEYS | {"bank": bytes(16)}, "the key of 'shop' and 'bank' must be 32 secret bytes"),
        ("shop", THREE, dict.fromkeys(KEYS, SECRET), "two keys of 'shop' are the same"),
    ],
)
def test_ends_that_would_not_hide_anything_are_refused(
    me: str, parties: tuple[str, ...], keys: dict[str, bytes], says: str
) -> None:
    with pytest.raises(BadParameter, match=says):
        SecureSumSender(me, parties, keys)


def test_messages_that_do_not_fit_together_name_the_party() -> None:
    context = context_of(THREE, 4)
    sealed = sealed_by_all(random_counts(3, 4, (8, 4)), context)
    wrong: list[tuple[Symbols, str]] = [
        (replace(sealed[1], shape=(4, 8)), "shape \\(4, 8\\), 'bank' has \\(8, 4\\)"),
        (replace(sealed[1], seed=7), "another kind of levels than 'bank'"),
        (replace(sealed[1], modulus=32), "modulus 32, expected 16"),
        (random_counts(3, 4, (8, 4))[1], "Counts symbols, expected Masked"),  # never sealed
        (TopK(0.5).compress(torch.ones(8, 4), Keystream(SECRET)), "symbols, expected Masked"),
    ]
    for symbols, says in wrong:
        with pytest.raises(Malformed, match=f"round 5: 'shop' sent .*{says}"):
            opened([sealed[0], symbols, sealed[2]], context)
    for few in ([], sealed[:2], [*sealed, sealed[0]]):
        with pytest.raises(BadParameter, match=f"{len(few)} sealed messages of 3 parties"):
            opened(few, context)


def test_no_secret_is_shown() -> None:
    sender = senders(THREE)[1]
    seal(sender, random_counts(3, 4)[1], context_of(THREE, 4))
    shown = repr(sender) + str(sender.state())
    assert not any(key.hex() in shown or repr(key) in shown for key in KEYS.values())


def test_settings_are_values() -> None:
    assert SecureSum() == SecureSum(min_parties=3) != SecureSum(min_parties=2)
    assert hash(Plain()) == hash(Plain())
    assert Plain() == Plain()
    assert {Labels("private"), Labels("shared")} == set(Labels)
