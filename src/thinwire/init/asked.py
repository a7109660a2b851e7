"""What the writer of a job file was told: parties and their files, the label, the id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from thinwire.errors import BadInput

__all__ = ["Asked"]


@dataclass(frozen=True)
class Asked:
    """Everything that `thinwire init` needs to know."""

    template: str
    files: dict[str, Path]  # of each party, in the order given
    label: tuple[str, str]  # party, column or key
    ids: dict[str, str] | None = None  # of each party; None: guessed

    @classmethod
    def parsed(cls, template: str, parties: Sequence[str], label: str, ids: Sequence[str]) -> Asked:
        """From flags: bank=bank.csv, shop:bought, customer or bank:customer."""
        files = dict(_pair(text, "=", "--party", "bank=bank.csv") for text in parties)
        if len(files) != len(parties):
            raise BadInput(f"--party: every party needs a name of its own, got {', '.join(parties)}")
        if len(files) < 2:
            raise BadInput("--party: a job has two parties at least; say --party bank=bank.csv --party shop=shop.csv")
        party, column = _pair(label, ":", "--label", "shop:bought")
        cls._require_party("--label", party, files)
        found: dict[str, str] = {}
        for text in ids:
            name, sign, rest = text.partition(":")
            if sign and name in files:
                found[name] = rest
            else:
                found |= {one: text for one in files if one not in found}
        if found and len(found) < len(files):
            missing = next(one for one in files if one not in found)
            raise BadInput(f"--id: which column names the rows of {missing!r}? Say --id {missing}:COLUMN too")
        return cls(template, {name: Path(file) for name, file in files.items()}, (party, column), found or None)

    @staticmethod
    def _require_party(option: str, name: str, files: dict[str, str]) -> None:
        if name not in files:
            near = get_close_matches(name, files, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadInput(f"{option}: no party is called {name!r}; there are {', '.join(files)}{hint}")


def _pair(text: str, sign: str, option: str, example: str) -> tuple[str, str]:
    left, found, right = text.partition(sign)
    if not found or not left or not right:
        raise BadInput(f"{option} {text}: write it as {option} {example}")
    return left, right
