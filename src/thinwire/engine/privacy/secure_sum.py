"""Secure sum: the label party learns the sum of the parties' integers, and nothing else about any of them.

Every pair of parties shares a key. For each sum the pair expands it, bound to the sum's context, into a mask
uniform on Z_R; the party that comes first adds it, the other subtracts it. Whoever lacks a party's keys sees
uniform values, and in the sum over all parties the masks cancel:

    sealed_i = q_i + sum_{j after i} mask_ij - sum_{j before i} mask_ij    (mod R)
    sum_i sealed_i = sum_i q_i    (mod R, and R is larger than any sum)

Sums modulo 2^32, as unsigned integers wrap, are sums modulo R too: R is a power of two up to 2^32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import BadParameter, BadState, IncompatibleRecipe, Malformed
from thinwire.base.types import PartyName
from thinwire.engine.compress.adding import Adding
from thinwire.engine.compress.message import Array, blocks
from thinwire.engine.compress.parameters import check_whole
from thinwire.engine.compress.randomness import Keystream
from thinwire.engine.compress.symbols import Dithered, Masked, Symbols, codes_dtype
from thinwire.engine.privacy.keys import Context, derive_key, frame_values, require_key

_DIGEST_SIZE = 32  # bytes


@dataclass(frozen=True, slots=True)
class Plain:
    """The label party sees each party's symbols.

    Examples:
        >>> tw.methods.svfl().aggregation == tw.privacy.Plain()
        True
    """


@dataclass(frozen=True, slots=True)
class SecureSum:
    """The label party sees only the sum of the feature parties' symbols.

    Args:
        min_parties: refuse fewer parties, because a sum of few hides little.

    Raises:
        BadParameter: `min_parties` below 2.

    Examples:
        >>> tw.privacy.SecureSum(min_parties=3).require(["bank", "shop", "clinic"])
    """

    min_parties: int = 3

    def __post_init__(self) -> None:
        check_whole(self, "min_parties", 2, 65535)

    def require(self, parties: Sequence[PartyName]) -> None:
        """Refuses too few parties for a sum to hide one of them."""
        if len(parties) < self.min_parties:
            raise IncompatibleRecipe(
                f"SecureSum needs {self.min_parties} parties that add noise, there are {len(parties)} "
                f"({', '.join(parties)}), too few to hide each other. Add parties, or lower min_parties (to at "
                "least 2) and rely on the epsilon of a single party (m = 1)"
            )

    def open_party(
        self, me: PartyName, parties: Sequence[PartyName], keys: Mapping[PartyName, bytes]
    ) -> SecureSumSender:
        """The end of one party, which remembers what it sealed; the label party's end is `open_sum`."""
        self.require(parties)
        return SecureSumSender(me, parties, keys)


Aggregation: TypeAlias = Plain | SecureSum


class SecureSumSender:
    """One party's end of a secure sum.

    A mask that is used twice reveals the difference of what it hid, so a context is sealed once. `state()` records
    that: save it before a message leaves, and resume from an older one only with a new attempt. All parties of a sum
    finish it, or none: a sum without one of them would reveal that one.

    Args:
        me: this party.
        parties: all that add, in the job's order.
        keys: 32 bytes for each other party, which only that pair shares.

    Raises:
        BadParameter: keys or parties do not match, or two keys are the same.
    """

    def __init__(self, me: PartyName, parties: Sequence[PartyName], keys: Mapping[PartyName, bytes]) -> None:
        SecureSum(min_parties=2).require(parties)
        if len(set(parties)) != len(parties) or me not in parties:
            raise BadParameter(f"SecureSum: {me!r} must be one of different parties, got {tuple(parties)}")
        if set(keys) != set(parties) - {me}:
            raise BadParameter(
                f"SecureSum: {me!r} needs a key for each other party, got keys for {sorted(keys)} "
                f"among {tuple(parties)}"
            )
        for party, key in keys.items():
            require_key(key, f"SecureSum: the key of {me!r} and {party!r}")
        if len(set(keys.values())) != len(keys):
            # One is added and one subtracted where a party stands between two others: no mask is left.
            raise BadParameter(f"SecureSum: two keys of {me!r} are the same; each pair agrees on its own")
        self._me = me
        self._parties = tuple(parties)
        mine = self._parties.index(me)
        self._masks = [
            (keys[party], np.subtract if place < mine else np.add)
            for place, party in enumerate(self._parties)
            if place != mine
        ]
        self._sealed: dict[bytes, bytes] = {}  # a context's digest -> the digest of what was sealed under it

    def seal(self, symbols: Symbols, adding: Adding, context: Context) -> Masked:
        """The integers under this party's masks. Again under one context only for the same integers: a retry."""
        self._require(adding, context)
        mine = adding.integers(symbols)
        if int(mine.min()) < 0 or int(mine.max()) > adding.top:
            raise BadParameter(f"SecureSum: integers outside 0 to {adding.top}; the sum would wrap")
        # Wraps modulo 2^32 from here on.
        total = mine.astype(np.uint32)
        for key, mask in self._masks:
            stream = Keystream(derive_key(key, context.to_bytes()))
            for block in blocks(total.size):
                mask(total[block], stream.words(total[block].size), out=total[block])
        seed = symbols.seed if isinstance(symbols, Dithered) else None
        sealed = Masked(symbols.shape, _reduced(total, context.modulus), context.modulus, seed)
        self._record(sealed, context)
        return sealed

    def _require(self, adding: Adding, context: Context) -> None:
        if context.parties != self._parties:
            raise BadParameter(f"SecureSum: a context of {context.parties}, the keys are for {self._parties}")
        if adding.top != context.top:
            raise BadParameter(f"SecureSum: integers up to {adding.top}, the context has {context.top}")

    def _record(self, sealed: Masked, context: Context) -> None:
        # The digest of the sealed integers, not of the plain ones: those few bits could be guessed from it.
        # Under one context the two are as good, for the masks are the same.
        header = frame_values(len(sealed.shape), *sealed.shape)
        digest = sha256(header + sealed.values.tobytes()).digest()
        if self._sealed.setdefault(sha256(context.to_bytes()).digest(), digest) != digest:
            raise BadParameter(
                f"SecureSum: {self._me!r} has already sealed other integers in round {context.round}, attempt "
                f"{context.attempt}, and the same masks would show the difference. Send the same ones "
                "again, or start a new attempt"
            )

    def state(self) -> dict[str, Tensor]:
        """The record of sealed contexts, as digests: the log that none was used twice. No secrets."""
        return {"contexts": _table(self._sealed.keys()), "sealed": _table(self._sealed.values())}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Adds a saved record to this one; what was sealed is never forgotten."""
        if set(state) != {"contexts", "sealed"}:
            raise BadState(f"SecureSum: the record holds {sorted(state)}, expected ['contexts', 'sealed']")
        contexts, sealed = _digests(state["contexts"]), _digests(state["sealed"])
        if not len(set(contexts)) == len(contexts) == len(sealed):
            raise BadState(f"SecureSum: {len(set(contexts))} contexts in the record, {len(sealed)} sealed")
        loaded = dict(zip(contexts, sealed, strict=True))
        if any(self._sealed.get(context, digest) != digest for context, digest in loaded.items()):
            raise BadState("SecureSum: the saved record has other integers under a context sealed since")
        self._sealed |= loaded


def open_sum(sealed: Sequence[Symbols], adding: Adding, context: Context) -> Symbols:
    """Decodes the sum of all parties' integers.

    Masks cancel in the full set only. Integers sealed with another key or context are detected where the ring is
    larger than the largest sum.

    Args:
        sealed: one message per party, in the order of `context.parties`.
        adding: how the compressor's integers add up, from `compressor.adding()`.
        context: the same as the senders'.

    Raises:
        BadParameter: a message is missing.
        Malformed: shapes differ, or a party used another key or context.

    Examples:
        >>> mechanism, parties = tw.compress.PoissonBinomial(trials=4, beta=0.2), ("bank", "shop")
        >>> context = tw.privacy.Context(1, "d1", 0, 0, 99, parties, top=4, modulus=tw.privacy.ring_modulus(2, 4))
        >>> keys = {"bank": {"shop": bytes(32)}, "shop": {"bank": bytes(32)}}
        >>> ends = [tw.privacy.SecureSumSender(name, parties, keys[name]) for name in parties]
        >>> x, noise = torch.zeros(2, 3), tw.compress.Keystream(bytes(32))
        >>> sealed = [end.seal(mechanism.compress(x, noise), mechanism.adding(), context) for end in ends]
        >>> tw.privacy.open_sum(sealed, mechanism.adding(), context).shape
        (2, 3)
    """
    if len(sealed) != len(context.parties):
        raise BadParameter(
            f"secure sum, round {context.round}: {len(sealed)} sealed messages of {len(context.parties)} "
            f"parties ({', '.join(context.parties)}); the masks cancel in the full set alone, so wait for all"
        )
    received = [_received(*pair, context) for pair in zip(sealed, context.parties, strict=True)]
    first = received[0]
    total = np.zeros(first.values.size, np.uint32)
    for message, party in zip(received, context.parties, strict=True):
        if message.shape != first.shape:
            raise _malformed(party, context, f"shape {message.shape}, {context.parties[0]!r} has {first.shape}")
        if (message.seed is None) != (first.seed is None):
            raise _malformed(party, context, f"another kind of levels than {context.parties[0]!r}")
        total += message.values.astype(np.uint32)
    most = context.top * len(context.parties)
    added = _reduced(total, context.modulus)
    if int(added.max()) > most:
        raise Malformed(
            f"secure sum, round {context.round}: a sum of {int(added.max())}, above the maximum of {most}; "
            "a party used another key or context. Compare the parties' recipes, rows and attempts"
        )
    seeds = [message.seed for message in received if message.seed is not None]
    return adding.sum_symbols(added, first.shape, len(context.parties), seeds)


def _received(symbols: Symbols, party: PartyName, context: Context) -> Masked:
    if not isinstance(symbols, Masked):
        raise _malformed(party, context, f"{type(symbols).__name__} symbols, expected Masked")
    if symbols.modulus != context.modulus:
        raise _malformed(party, context, f"modulus {symbols.modulus}, expected {context.modulus}")
    return symbols


def _malformed(party: PartyName, context: Context, what: str) -> Malformed:
    return Malformed(f"secure sum, round {context.round}: {party!r} sent {what}")


def _reduced(total: Array, modulus: int) -> Array:
    """`total` modulo a power of two, in as few bytes as hold it."""
    total &= np.uint32(modulus - 1)
    return total.astype(codes_dtype(0, modulus - 1))


def _table(digests: Iterable[bytes]) -> Tensor:
    rows = np.frombuffer(bytearray().join(digests), np.uint8).reshape(-1, _DIGEST_SIZE)
    return torch.from_numpy(rows)


def _digests(table: Tensor) -> list[bytes]:
    if table.dtype != torch.uint8 or table.dim() != 2 or table.shape[1] != _DIGEST_SIZE:
        raise BadState(
            f"SecureSum: the record is {table.dtype} {tuple(table.shape)}, expected uint8 digests of "
            f"{_DIGEST_SIZE} bytes"
        )
    return [row.tobytes() for row in table.numpy()]
