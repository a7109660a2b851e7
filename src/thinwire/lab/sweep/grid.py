"""What a sweep runs: every combination of some settings' values, with every seed."""

from __future__ import annotations

import hashlib
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadParameter
from thinwire.job.toml_text import inline

_LONGEST_NAME = 80
_WORD = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True)
class Trial:
    """One run to make: a job file, and `key=value` settings as --set takes them."""

    job: str
    settings: tuple[str, ...] = ()
    point: tuple[tuple[str, Any], ...] = ()  # what is varied, beside the seed; runs of one point are averaged
    seed: int | None = None  # None: the job's

    @property
    def overrides(self) -> tuple[str, ...]:
        given = tuple(f"{key}={inline(value)}" for key, value in self.point)
        return (*self.settings, *given, *(() if self.seed is None else (f"job.seed={self.seed}",)))

    @property
    def said(self) -> str:
        """For people."""
        seed = [] if self.seed is None else [f"seed {self.seed}"]
        return ", ".join([*(f"{key} {_shown(value)}" for key, value in self.point), *seed]) or Path(self.job).stem

    @property
    def folder(self) -> str:
        """Of its run, below the sweep's: readable, and its own whatever the values are."""
        words = [*(f"{key.rpartition('.')[2]}={_shown(value)}" for key, value in self.point)]
        words += [] if self.seed is None else [f"seed={self.seed}"]
        readable = re.sub(r"[^A-Za-z0-9=.-]+", "_", ",".join(words) or "run").strip(".")[:_LONGEST_NAME]
        digest = hashlib.sha256("\n".join((Path(self.job).stem, *self.overrides)).encode()).hexdigest()
        return f"{readable}-{digest[:8]}"


@dataclass(frozen=True)
class Grid:
    """`Grid("job.toml", {"recipe.reuse": [2, 4, 6]}, seeds=[0, 1, 2])`: nine runs."""

    job: str | Path
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    seeds: Sequence[int] = ()  # none: the job's
    settings: Sequence[str] = ()  # of every run

    def __post_init__(self) -> None:
        for key, values in self.values.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise BadParameter(f"grid {key}: a list of values, one at least, such as [2, 4, 6]; got {values!r}")
            if len({inline(value) for value in values}) < len(values):
                raise BadParameter(f"grid {key}: a value is there twice: {list(values)}")
        if len(set(self.seeds)) < len(self.seeds):
            raise BadParameter(f"seeds: one is there twice: {list(self.seeds)}")

    def trials(self) -> list[Trial]:
        """In the order of the keys and values, the seeds of a point together."""
        points = itertools.product(*([(key, value) for value in values] for key, values in self.values.items()))
        return [
            Trial(str(self.job), tuple(self.settings), tuple(point), seed)
            for point in points
            for seed in (self.seeds or (None,))
        ]


def read_axis(text: str) -> tuple[str, list[Any]]:
    """`recipe.reuse=2,4,6`: a key and its values, which are TOML; single words need no quotes."""
    key, equals, given = text.partition("=")
    wrong = BadParameter(f"--grid {text}: write KEY=VALUE,VALUE as in --grid recipe.reuse=2,4,6")
    if not equals or not key.strip() or not given.strip():
        raise wrong
    try:
        values = tomllib.loads(f"values = [{given}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [word.strip() for word in given.split(",")]
        if not all(_WORD.fullmatch(word) for word in values):
            raise wrong from None
    return key.strip(), values


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else inline(value)
