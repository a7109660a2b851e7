"""What parties tell each other when they connect, and why one may refuse another: to train, to predict, or to probe.

Nothing of it becomes a path, a class or a callable. A probe carries sizes and digests; never data, ids or keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire import __version__
from thinwire.base.format import printable
from thinwire.base.types import PartyName
from thinwire.net.grpc.service import PROTOCOL, Refused
from thinwire.net.links.records import Count, Text

MOST_FILLER = 1_000_000  # characters: a request and an answer may have 1 MiB
PREDICTION = "prediction"
_LONGEST = 80  # of a value in a message: the other one comes from a peer
_OF_THE_LABEL_PARTY = ("begin", "away", "aborted")
_OTHER_PURPOSE = {
    None: "one of {0!r} and this party is training, the other is aligning or predicting: start the same command at "
    "every party",
    PREDICTION: "one of {0!r} and this party has come to predict, the other has not: start `thinwire predict` or "
    "`thinwire serve` at every party",
    "alignment": "{0!r} wants to train, but this side is aligning; run `thinwire align` at every party first",
}

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Width = Annotated[int, Field(ge=1, le=1 << 20)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


_AnyMessage = TypeVar("_AnyMessage", bound=_Message)


# What is common to all --------------------------------------------------------------------------------------------


def check_protocol(peer: PartyName, me: PartyName, message: Mapping[str, Any], purpose: str | None) -> None:
    """Raises Refused before anything else is read: another version may say all else differently.

    A training has no purpose.
    """
    protocol, version = message.get("protocol"), printable(str(message.get("version")))[:40]
    if protocol != PROTOCOL:
        raise Refused(
            f"{peer!r} speaks protocol {protocol!r} (thinwire {version}), this side {PROTOCOL}; use the same "
            "version at all parties"
        )
    if message.get("purpose") != purpose:
        raise Refused(_OTHER_PURPOSE[purpose].format(peer))
    if version != __version__:
        raise Refused(
            f"{peer!r} runs thinwire {version}, {me!r} runs {__version__}; use the same version at all parties"
        )


def _read(kind: type[_AnyMessage], where: str, message: Any) -> _AnyMessage:
    try:
        return kind.model_validate(message)
    except ValidationError as error:
        first = error.errors()[0]
        raise Refused(f"{where}{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def compare_agreements(
    ours: Mapping[str, str], theirs: Mapping[str, str], me: PartyName, peer: PartyName
) -> list[str]:
    """One sentence for each field that differs, for either to read; empty where the two agree."""
    paths = {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)}
    # A party without trees need not know what they follow from.
    paths -= {path for path in ours.keys() ^ theirs.keys() if path.startswith("trees.")}
    return [
        f"{_shorten(path)} is {_shorten(ours.get(path))} at {me!r} and {_shorten(theirs.get(path))} at {peer!r}"
        for path in sorted(paths)
        if not _follows(path, paths, ours, theirs)
    ]


def _follows(path: str, paths: set[str], ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Does this difference only follow from another one?"""
    if path == "recipe":
        return any(other.startswith("recipe.") for other in paths)
    if path in ours and path in theirs:
        return False
    # A field that only one kind of compressor has says less than that the kinds differ.
    above = path.rpartition(".")[0]
    while above not in ("", "recipe"):
        if above in paths:
            return True
        above = above.rpartition(".")[0]
    return False


def _shorten(text: str | None) -> str:
    """What comes from a peer must not write lines of its own into our messages."""
    if text is None:
        return "not given"
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return short if short.isprintable() and short else ascii(short)


def _compare_rows(first: Any, second: Any, names: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each of the counts and digests that both state and that differ."""
    for field, name in names.items():
        here, there = getattr(first, field), getattr(second, field)
        if None in (here, there) or here == there:
            continue
        if isinstance(here, int):
            held = f"{first.party!r} has {here} {name}, {second.party!r} has {there}"
            yield f"{held}; all parties must hold the same rows"
        else:
            yield (
                f"{first.party!r} and {second.party!r} list different row ids, or the same in a different order "
                f"({name}: digests {here[:12]} and {there[:12]}); put the rows of both into the same order"
            )


_TABLES = {
    "rows": "training rows",
    "validation_rows": "validation rows",
    "test_rows": "test rows",
    "row_ids": "training rows",
    "validation_row_ids": "validation rows",
    "test_row_ids": "test rows",
}


# A probe beside a run, and training -------------------------------------------------------------------------------


class ProbeHello(_Message):
    """A party as it says itself; sizes and digests are left out where its data could not be read."""

    party: Text
    version: Text
    agreement: dict[str, Text]
    rows: Count | None = None
    validation_rows: Count | None = None
    test_rows: Count | None = None
    row_ids: Text | None = None
    validation_row_ids: Text | None = None
    test_row_ids: Text | None = None
    width: Annotated[int, Field(ge=0, le=1 << 20)] = 0  # of its embedding; 0 where it has none, or none is known

    @classmethod
    def read(cls, value: Any) -> ProbeHello:
        return _read(cls, "probe: brought.", value)

    def differences_to(self, other: ProbeHello) -> list[str]:
        """One sentence each; empty where both could take part in one run, as far as is known."""
        found = compare_agreements(self.agreement, other.agreement, self.party, other.party)
        return [*found, *_compare_rows(self, other, _TABLES)]


def answer_probe(request: Mapping[str, Any], caller: PartyName, ours: ProbeHello, now: float) -> dict[str, Any]:
    """What the label party, or its doctor, answers to a probe."""
    want = request.get("want", 0)
    if isinstance(want, bool) or not isinstance(want, int) or not 0 <= want <= MOST_FILLER:
        raise Refused(f"probe: want must be from 0 to {MOST_FILLER} characters, got {want!r}")
    answer = {
        "party": ours.party,
        "version": ours.version,
        "time": now,
        "echo": request.get("echo", ""),
        "filler": make_filler(want),
    }
    if "brought" in request:
        theirs = ProbeHello.read(request["brought"]).model_copy(update={"party": caller})
        answer["differences"] = theirs.differences_to(ours)
        answer["names_ids"] = ours.row_ids is not None
    return answer


def make_filler(count: int) -> str:
    """Nothing that a tunnel on the way could make shorter."""
    return secrets.token_urlsafe(count)[:count]


class TrainingHello(ProbeHello):
    """A party in a run, as it says itself."""

    protocol: Count
    run: Text
    rows: Count
    validation_rows: Count
    test_rows: Count
    row_ids: Text | None
    validation_row_ids: Text | None
    test_row_ids: Text | None
    width: Annotated[int, Field(ge=0, le=1 << 20)]  # of its embedding; 0 where it has none
    incarnation: Annotated[int, Field(ge=1, lt=1 << 63)]
    instance: Text
    nonce: Text | None  # of the run, where it has one yet
    finished: bool


def read_training_hello(peer: PartyName, me: PartyName, message: dict[str, Any]) -> TrainingHello:
    check_protocol(peer, me, message, None)
    return _read(TrainingHello, f"{peer!r}: ", message)


def check_training_hello(ours: TrainingHello, theirs: TrainingHello) -> None:
    """Raises Refused where the two cannot take part in one run; names what differs."""
    me, peer = ours.party, theirs.party
    found = compare_agreements(ours.agreement, theirs.agreement, me, peer)
    if found:
        raise Refused(f"the job of {me!r} differs from that of {peer!r}: {'; '.join(found)}")
    if ours.run != theirs.run:
        raise Refused(f"{peer!r} is in run {theirs.run}, {me!r} in {ours.run}")
    for sentence in _compare_rows(theirs, ours, _TABLES):
        raise Refused(sentence)
    if ours.nonce is not None and theirs.nonce is not None and ours.nonce != theirs.nonce:
        raise Refused(
            f"{peer!r} resumes a different run of this job than {me!r}; give both a new --out folder, or restore "
            "the folders that belong together"
        )


class TrainingNews(_Message):
    """What a party may tell in the middle of a run."""

    finished: bool | None = None
    noted: bool | None = None  # that the other one has finished, or was stopped
    stopped: str | None = None  # why, for all
    paused: Annotated[int, Field(ge=0)] | None = None  # in this round, by its own people: it goes on once started
    # Only a label party tells these.
    begin: dict[str, _Width] | None = None  # the widths of all embeddings
    away: list[Text] | None = None
    aborted: Text | None = None  # by whom


def read_training_news(told: dict[str, Any], from_label_party: bool) -> dict[str, Any]:
    """What can be believed, by topic; the rest is left out."""
    found: dict[str, Any] = {}
    for topic in TrainingNews.model_fields.keys() & told.keys():
        if from_label_party or topic not in _OF_THE_LABEL_PARTY:
            with suppress(ValidationError):
                found |= TrainingNews.model_validate({topic: told[topic]}).model_dump(exclude_none=True)
    return found


# Prediction -------------------------------------------------------------------------------------------------------


class CacheTerms(_Message):
    """That a party allows its embeddings to be kept, how many and for how long."""

    rows: Annotated[int, Field(ge=1, le=1 << 30)]
    seconds: Annotated[_Finite, Field(gt=0)]


class OfferedModel(_Message):
    """One model that a feature party has loaded."""

    run: Text  # which models belong together
    hash: Text  # of its own model's file
    recipe: Text  # digest
    width: _Width
    key: Annotated[str, Field(max_length=1 << 17)] | None = None  # signed, for the secure sum
    next_number: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    default: list[_Finite] | None = None  # an embedding to take where this party is missing


class PredictionHello(_Message):
    """A party that comes to answer questions, or to ask them."""

    party: Text
    parties: list[Text]  # the feature parties in order, the label party last
    rows: Count
    row_ids: Text | None
    models: list[OfferedModel] = Field(max_length=8)
    cache: CacheTerms | None = None

    def to_message(self) -> dict[str, Any]:
        """As HELLO or WELCOME says it."""
        return {"protocol": PROTOCOL, "version": __version__, "purpose": PREDICTION, **self.model_dump()}


def read_prediction_hello(peer: PartyName, message: dict[str, Any], ours: PredictionHello) -> PredictionHello:
    """Refuses who wants something else, or holds other rows; names what differs."""
    check_protocol(peer, ours.party, message, PREDICTION)
    theirs = _read(PredictionHello, f"{peer!r}: ", message)
    if theirs.party != peer or theirs.parties != ours.parties:
        raise Refused(f"{peer!r} is {theirs.party!r} among {theirs.parties}; {ours.party!r} expects {ours.parties}")
    for sentence in _compare_rows(theirs, ours, {"rows": "rows", "row_ids": "rows"}):
        raise Refused(sentence)
    return theirs
