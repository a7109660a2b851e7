"""What a check says."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, TypeVar


class CheckVerdict(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: CheckVerdict
    says: str  # in a line
    more: tuple[str, ...] = ()  # the way out, or details
    facts: Mapping[str, Any] = field(default_factory=dict)  # for machines


_Value = TypeVar("_Value")
BytesShown: TypeAlias = Callable[[float], str]
Checks: TypeAlias = Generator[Check, None, _Value]  # and what they leave to the ones that follow


def ok(name: str, says: str, *more: str, **facts: Any) -> Check:
    return Check(name, CheckVerdict.OK, says, more, facts)


def warning(name: str, says: str, *more: str, **facts: Any) -> Check:
    return Check(name, CheckVerdict.WARNING, says, more, facts)


def problem(name: str, says: str, *more: str, **facts: Any) -> Check:
    return Check(name, CheckVerdict.PROBLEM, says, more, facts)


def skip_checks(names: Sequence[str], why: str) -> Iterator[Check]:
    return (Check(name, CheckVerdict.NOT_CHECKED, why) for name in names)
