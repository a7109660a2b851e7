"""How a run stands, as its label party tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from thinwire.base.errors import Malformed
from thinwire.base.format import printable
from thinwire.net.links.records import Count, Text


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class PartyStanding(_Told):
    """A feature party as the label party sees it."""

    connected: bool = False
    away_seconds: float = 0.0
    starts: Count = 0
    finished: bool = False
    stopped: bool = False  # by its own people


class Bytes(_Told):
    up: Count = 0
    down: Count = 0
    retransmitted: Count = 0


class Evaluation(_Told):
    round: Count
    train: dict[str, float]
    test: dict[str, float]


class Standing(_Told):
    """The answer to Status; a doctor says no more than that it is one."""

    label_party: Text
    state: Text
    method: Text = ""
    round: Count = 0
    rounds: Count = 0
    waiting_for: Text | None = None
    parties: dict[str, PartyStanding] = {}
    bytes: Bytes = Bytes()
    last_event: Evaluation | None = None


def read_standing(answer: Mapping[str, Any]) -> Standing:
    try:
        return Standing.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        place = printable(".".join(map(str, first["loc"])))
        raise Malformed(f"the label party's answer cannot be read: {place}: {first['msg']}") from None
