"""Bodies that no honest party sends: refused by an error that names the sender, before memory is made for them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from engine.identities.small import job
from thinwire.base.errors import Malformed, TooLarge, WireError
from thinwire.base.types import Kind
from thinwire.engine.compress.symbols import LevelSum, Zeros
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.protocols.evaluation import ColumnTable
from thinwire.engine.wire.buffers import pack_bundle, unpack_bundle
from thinwire.engine.wire.codec import encode

EXACT, TOP_K = tw.methods.svfl(), tw.compress.TopK(0.1)
SHARED = tw.methods.efvfl(TOP_K, warm_start=True)
SURROGATES = tw.methods.efvfl(TOP_K, broadcast="surrogates", order="update_first", warm_start=True)
TABLE = tw.methods.efvfl(TOP_K, labels="private", scope="table")
ONCE = tw.methods.once(passes=1)
WARM = tw.methods.thin(warm_passes=1)
SUMMED = tw.methods.pbm(trials=4, beta=0.1)
BOMB = encode(Zeros((1 << 12, 1 << 12)))  # 64 MiB of zeros in a few bytes

Tamper = Callable[[bytes], bytes]


def tampered(
    monkeypatch: pytest.MonkeyPatch, recipe: Any, kind: Kind, sender: str, tamper: Tamper, **settings: Any
) -> str:
    """What the run ends with where `sender` sends other bodies of this kind than it should."""
    whole = PartyContext.send

    def other(context: PartyContext, receiver: str, what: Kind, round: int, body: bytes) -> None:
        whole(context, receiver, what, round, tamper(body) if (what, context.me) == (kind, sender) else body)

    monkeypatch.setattr(PartyContext, "send", other)
    with pytest.raises(WireError) as error:
        tw.train(job(recipe, epochs=0.2, **settings), callbacks=[])
    assert isinstance(error.value, Malformed | TooLarge)
    return str(error.value)


def explode(body: bytes) -> bytes:
    return BOMB


def explode_each(body: bytes) -> bytes:
    return pack_bundle(dict.fromkeys(unpack_bundle(body), BOMB))


def explode_first(body: bytes) -> bytes:
    return pack_bundle({**unpack_bundle(body), 0: BOMB})


@pytest.mark.parametrize(
    ("recipe", "kind", "sender", "tamper"),
    [
        (EXACT, Kind.EMBEDDING, "p1", explode),
        (EXACT, Kind.DERIVATIVE, "lab", explode),
        (EXACT, Kind.EVALUATION, "p1", explode),
        (EXACT, Kind.COLUMN, "p1", explode),
        (TABLE, Kind.EMBEDDING, "p1", explode),
        (SUMMED, Kind.EMBEDDING, "p1", explode),
        (SUMMED, Kind.EVALUATION, "p1", explode),
        (SUMMED, Kind.DERIVATIVE, "lab", explode),
        (SHARED, Kind.WARM_START, "p1", explode),
        (SHARED, Kind.WARM_START, "lab", explode_each),
        (SHARED, Kind.EMBEDDING, "p1", explode),
        (SHARED, Kind.LABELS, "lab", explode_first),
        (SHARED, Kind.REPRESENTATIONS, "lab", explode_each),
        (SURROGATES, Kind.REPRESENTATIONS, "lab", explode_each),
        (SHARED, Kind.TOP_MODEL, "lab", explode),
        (EXACT, Kind.ROWS, "lab", explode),
        (ONCE, Kind.EMBEDDING, "p1", explode),
        (ONCE, Kind.EVALUATION, "p1", explode),
        (WARM, Kind.WARM_START, "p1", explode),
    ],
)
def test_a_few_bytes_never_become_more_than_rows_times_width(
    monkeypatch: pytest.MonkeyPatch, recipe: Any, kind: Kind, sender: str, tamper: Tamper
) -> None:
    asked: dict[Kind, dict[str, Any]] = {
        Kind.ROWS: {"batches": "announced"},
        Kind.COLUMN: {"column_importance": True},
    }
    frozen = {"training": tw.privacy.Frozen()} if recipe is ONCE else {}
    said = tampered(monkeypatch, recipe, kind, sender, tamper, **asked.get(kind, {}), **frozen)
    assert "16777216 values in shape (4096, 4096) are announced, the cap is" in said
    assert "sent an invalid message body" in said


@pytest.mark.parametrize("recipe", [EXACT, SUMMED], ids=["each", "summed"])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "round 0: 'p1' sent no embedding of held-out rows, there are 120 labels of them"),
        (encode(Zeros(())), "'p1' sent values of shape [], expected [120, 8]"),
        (encode(Zeros((120,))), "'p1' sent values of shape [120], expected [120, 8]"),
        (encode(Zeros((120, 7))), "'p1' sent values of shape [120, 7], expected [120, 8]"),
        (encode(Zeros((119, 8))), "'p1' sent values of shape [119, 8], expected [120, 8]"),
    ],
    ids=["empty", "scalar", "vector", "narrow", "short"],
)
def test_a_test_embedding_of_another_shape(
    monkeypatch: pytest.MonkeyPatch, recipe: Any, body: bytes, says: str
) -> None:
    fusion = "sum" if recipe is SUMMED else "concat"
    said = tampered(monkeypatch, recipe, Kind.EVALUATION, "p1", lambda _: body, fusion=fusion)
    assert says in said


@pytest.mark.parametrize(
    ("sender", "body", "says"),
    [
        ("p1", encode(Zeros((120, 7))), "'p1' sent values of shape [120, 7], expected [120, 8]"),
        ("lab", b"", "'lab' answered a column with b''"),
        ("lab", bytes(7), "'lab' answered a column with"),
        ("lab", struct.pack("<d", float("nan")), "'lab' answered a column with"),
        ("lab", bytes(8), "'lab' scores columns by '"),
    ],
    ids=["narrow", "empty", "short", "no number", "no name"],
)
def test_columns_that_cannot_be(monkeypatch: pytest.MonkeyPatch, sender: str, body: bytes, says: str) -> None:
    said = tampered(monkeypatch, EXACT, Kind.COLUMN, sender, lambda _: body, column_importance=True)
    assert says in said


def test_a_party_that_never_has_asked_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer tells something of the test labels."""

    def ask_on(table: ColumnTable, bottom: nn.Module, lose: Callable[[torch.Tensor], float]) -> dict[str, float]:
        return {str(number): lose(bottom(table.features)) for number in range(7)}

    monkeypatch.setattr(ColumnTable, "measure", ask_on)
    monkeypatch.setattr("thinwire.engine.protocols.evaluation.MOST_COLUMNS", 2)  # three times each
    with torch.no_grad(), pytest.raises(Malformed, match="asks about more than 2 columns"):
        tw.train(job(EXACT, epochs=0.2, column_importance=True), callbacks=[])


def test_a_test_embedding_where_there_are_no_test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PartyContext.send

    def more(context: PartyContext, receiver: str, kind: Kind, round: int, body: bytes) -> None:
        ours = (kind, context.me) == (Kind.EVALUATION, "p1")
        whole(context, receiver, kind, round, encode(Zeros((4, 8))) if ours else body)

    monkeypatch.setattr(PartyContext, "send", more)
    given = job(EXACT, epochs=0.2)
    given.label_party.test_labels = None
    for party in given.parties:
        party.test_features = None
    with pytest.raises(Malformed, match="'p1' sent an embedding of held-out rows, there are 0 labels of them"):
        tw.train(given, callbacks=[])


def test_a_sum_of_more_parties_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.zeros(50 * 8, dtype=torch.uint8).numpy()
    codes[0] = 1
    sums = encode(LevelSum((50, 8), codes, 0.0, 1.0, 1, 5000, tuple(range(5000))))
    said = tampered(monkeypatch, EXACT, Kind.EMBEDDING, "p1", lambda _: sums)
    assert "'p1' sent a sum of 5000 parties' values" in said
