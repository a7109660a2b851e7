"""A question beside a run, and its answer: who is there, and does it read the job as we do.

A probe carries sizes and digests; never data, ids or keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire.job.agreement import differences
from thinwire.transport.records import Count, Text
from thinwire.transport.service import Refused
from thinwire.types import PartyName

__all__ = ["MOST_FILLER", "Brought", "filler", "probe_answer"]

MOST_FILLER = 1_000_000  # characters: a request and an answer may have 1 MiB


class Brought(BaseModel):
    """A party as it says itself; sizes and digests are left out where its data could not be read."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    party: Text
    version: Text
    agreement: dict[str, Text]
    rows: Count | None = None
    test_rows: Count | None = None
    row_ids: Text | None = None
    test_row_ids: Text | None = None
    width: Annotated[int, Field(ge=0, le=1 << 20)] = 0  # of its embedding; 0 where it has none, or none is known

    @classmethod
    def read(cls, value: Any) -> Brought:
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(f"probe: brought.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def differences_to(self, other: Brought) -> list[str]:
        """One sentence each; empty where both could take part in one run, as far as is known."""
        me, peer = self.party, other.party
        found = differences(self.agreement, other.agreement, me, peer)
        for field, name in (("rows", "training rows"), ("test_rows", "test rows")):
            here, there = getattr(self, field), getattr(other, field)
            if None not in (here, there) and here != there:
                found.append(f"{me!r} has {here} {name}, {peer!r} has {there}; all parties must hold the same rows")
        for field, name in (("row_ids", "row ids"), ("test_row_ids", "ids of test rows")):
            here, there = getattr(self, field), getattr(other, field)
            if None not in (here, there) and here != there:
                found.append(
                    f"{me!r} and {peer!r} list other {name}, or in another order (digests {here[:12]} and "
                    f"{there[:12]}); bring the rows of both into one order"
                )
        return found


def probe_answer(request: Mapping[str, Any], caller: PartyName, ours: Brought, now: float) -> dict[str, Any]:
    """What the label party, or its doctor, answers to a probe."""
    want = request.get("want", 0)
    if isinstance(want, bool) or not isinstance(want, int) or not 0 <= want <= MOST_FILLER:
        raise Refused(f"probe: want must be from 0 to {MOST_FILLER} characters, got {want!r}")
    answer = {
        "party": ours.party,
        "version": ours.version,
        "time": now,
        "echo": request.get("echo", ""),
        "filler": filler(want),
    }
    if "brought" in request:
        theirs = Brought.read(request["brought"]).model_copy(update={"party": caller})
        answer["differences"] = theirs.differences_to(ours)
        answer["names_ids"] = ours.row_ids is not None
    return answer


def filler(count: int) -> str:
    """Nothing that a tunnel on the way could make shorter."""
    return secrets.token_urlsafe(count)[:count]
