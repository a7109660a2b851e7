"""Who is examined, and what a check says."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from thinwire.types import PartyName

__all__ = ["BytesShown", "Check", "Checks", "Patient", "Verdict", "not_checked", "ok", "problem", "warning"]


@dataclass(frozen=True)
class Patient:
    """What is examined: a party of a job, the folder of its run, and how long to wait for the others."""

    job: Path
    name: PartyName
    folder: Path
    wait_seconds: float = 0.0
    settings: Sequence[str] = ()


class Verdict(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    says: str  # in a line
    more: tuple[str, ...] = ()  # the way out, or details
    facts: Mapping[str, Any] = field(default_factory=dict)  # for machines


_Value = TypeVar("_Value")
BytesShown: TypeAlias = Callable[[float], str]
Checks: TypeAlias = Generator[Check, None, _Value]  # and what they leave to the ones that follow


def ok(name: str, says: str, *more: str, **facts: Any) -> Check:
    return Check(name, Verdict.OK, says, more, facts)


def warning(name: str, says: str, *more: str, **facts: Any) -> Check:
    return Check(name, Verdict.WARNING, says, more, facts)


def problem(name: str, says: str, *more: str, **facts: Any) -> Check:
    return Check(name, Verdict.PROBLEM, says, more, facts)


def not_checked(names: Sequence[str], why: str) -> Iterator[Check]:
    return (Check(name, Verdict.NOT_CHECKED, why) for name in names)
