"""What parties tell each other before the first question; nothing of it becomes a path, a class or a callable."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire import __version__
from thinwire.transport.records import Count, Text, printable
from thinwire.transport.service import PROTOCOL, Refused
from thinwire.types import PartyName

__all__ = ["PURPOSE", "CacheTerms", "Introduced", "Offered", "introduction", "read_introduction"]

PURPOSE = "prediction"
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Width = Annotated[int, Field(ge=1, le=1 << 20)]


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class CacheTerms(_Told):
    """That a party allows its embeddings to be kept, how many and for how long."""

    rows: Annotated[int, Field(ge=1, le=1 << 30)]
    seconds: Annotated[_Finite, Field(gt=0)]


class Offered(_Told):
    """One model that a feature party has loaded."""

    run: Text  # which models belong together
    hash: Text  # of its own model's file
    recipe: Text  # digest
    width: _Width
    key: Annotated[str, Field(max_length=1 << 17)] | None = None  # signed, for the secure sum
    next_number: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    default: list[_Finite] | None = None  # an embedding to take where this party is missing

    def signed_key(self) -> bytes:
        return base64.b64decode(self.key or "")


class Introduced(_Told):
    """A party that comes to answer questions."""

    party: Text
    parties: list[Text]  # the feature parties in order, the label party last
    rows: Count
    row_ids: Text | None
    models: list[Offered] = Field(max_length=8)
    cache: CacheTerms | None = None


def introduction(told: Introduced) -> dict[str, Any]:
    """As HELLO or WELCOME says it."""
    return {"protocol": PROTOCOL, "version": __version__, "purpose": PURPOSE, **told.model_dump()}


def read_introduction(peer: PartyName, said: dict[str, Any], ours: Introduced) -> Introduced:
    """Refuses who wants something else, or holds other rows; names what differs."""
    if said.get("protocol") != PROTOCOL or said.get("version") != __version__:
        raise Refused(
            f"{peer!r} runs thinwire {printable(str(said.get('version')))[:40]}, {ours.party!r} {__version__}; bring "
            "all parties to one version"
        )
    if said.get("purpose") != PURPOSE:
        raise Refused(
            f"one of {peer!r} and {ours.party!r} has come to predict, the other has not: start `thinwire predict` or "
            "`thinwire serve` at every party"
        )
    try:
        theirs = Introduced.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        raise Refused(f"{peer!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if theirs.party != peer or theirs.parties != ours.parties:
        raise Refused(f"{peer!r} is {theirs.party!r} among {theirs.parties}; {ours.party!r} expects {ours.parties}")
    if theirs.rows != ours.rows:
        raise Refused(f"{peer!r} has {theirs.rows} rows, {ours.party!r} has {ours.rows}; all must hold the same rows")
    if None not in (theirs.row_ids, ours.row_ids) and theirs.row_ids != ours.row_ids:
        raise Refused(f"{peer!r} and {ours.party!r} list other row ids, or in another order; align the rows first")
    return theirs
