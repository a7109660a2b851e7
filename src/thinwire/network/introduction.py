"""What parties tell each other when they connect, and why one may have to refuse another."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire.job.agreement import differences
from thinwire.transport.records import Count, Text
from thinwire.transport.service import PROTOCOL, Refused
from thinwire.types import PartyName

__all__ = ["About", "compare", "read_about", "read_news"]


class About(BaseModel):
    """A party in a run, as it says itself; nothing of it becomes a path, a class or a callable."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    protocol: Count
    version: Text
    party: Text
    run: Text
    agreement: dict[str, Text]
    rows: Count
    test_rows: Count
    row_ids: Text | None
    test_row_ids: Text | None
    width: Annotated[int, Field(ge=0, le=1 << 20)]  # of its embedding; 0 where it has none
    incarnation: Annotated[int, Field(ge=1, lt=1 << 63)]
    instance: Text
    nonce: Text | None  # of the run, where it has one yet
    finished: bool


def read_about(peer: PartyName, message: dict[str, Any]) -> About:
    """Checks the protocol first: another version may say all else differently."""
    protocol = message.get("protocol")
    if protocol != PROTOCOL:
        raise Refused(
            f"{peer!r} speaks protocol {protocol!r} (thinwire {message.get('version')}), this side {PROTOCOL}; "
            "bring all parties to one version"
        )
    if message.get("purpose") is not None:  # a training has none
        raise Refused(
            f"one of {peer!r} and this party trains, the other has come to align or to predict: start the same "
            "command at every party"
        )
    try:
        return About.model_validate(message)
    except ValidationError as error:
        first = error.errors()[0]
        raise Refused(f"{peer!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


class News(BaseModel):
    """What a party may tell in the middle of a run."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    finished: bool | None = None
    noted: bool | None = None  # that the other one has finished, or was stopped
    stopped: str | None = None  # why, for all
    paused: Annotated[int, Field(ge=0)] | None = (
        None  # in this round, by its own people: it goes on once started again
    )
    # Only a label party tells these.
    begin: dict[str, Annotated[int, Field(ge=1, le=1 << 20)]] | None = None  # the widths of all embeddings
    away: list[Text] | None = None
    aborted: Text | None = None  # by whom


_OF_THE_LABEL_PARTY = ("begin", "away", "aborted")


def read_news(told: dict[str, Any], from_label_party: bool) -> dict[str, Any]:
    """What can be believed, by topic; the rest is left out."""
    found: dict[str, Any] = {}
    for topic in News.model_fields.keys() & told.keys():
        if from_label_party or topic not in _OF_THE_LABEL_PARTY:
            with suppress(ValidationError):
                found |= News.model_validate({topic: told[topic]}).model_dump(exclude_none=True)
    return found


def compare(ours: About, theirs: About) -> None:
    """Raises Refused where the two cannot take part in one run; names what differs."""
    me, peer = ours.party, theirs.party
    if ours.version != theirs.version:
        raise Refused(
            f"{peer!r} runs thinwire {theirs.version}, {me!r} runs {ours.version}; bring all parties to one version"
        )
    found = differences(ours.agreement, theirs.agreement, me, peer)
    if found:
        raise Refused(f"the job of {me!r} is not that of {peer!r}: {'; '.join(found)}")
    if ours.run != theirs.run:
        raise Refused(f"{peer!r} is in run {theirs.run}, {me!r} in {ours.run}")
    for field, name in (("rows", "training rows"), ("test_rows", "test rows")):
        here, there = getattr(ours, field), getattr(theirs, field)
        if here != there:
            raise Refused(
                f"{peer!r} has {there} {name}, {me!r} has {here}; all parties must hold the same rows, in one order"
            )
    for field in ("row_ids", "test_row_ids"):
        here, there = getattr(ours, field), getattr(theirs, field)
        if here is not None and there is not None and here != there:
            raise Refused(
                f"{peer!r} and {me!r} list other row ids, or in another order (digests {there[:12]} and "
                f"{here[:12]}); bring the rows of both into one order"
            )
    if ours.nonce is not None and theirs.nonce is not None and ours.nonce != theirs.nonce:
        raise Refused(
            f"{peer!r} goes on with another run of this job than {me!r}; give both a new --out folder, or bring back "
            "the folders that belong together"
        )
