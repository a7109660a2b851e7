"""What the writer of a job file was told: its template, parties and their files, the label, the id."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.data.prepare import Settings
from thinwire.data.prepare.settings import StrictModel
from thinwire.job.schema import is_trees


class Template(StrictModel):
    """Settings of a kind of job; numbers that follow from the files are filled in later."""

    title: str
    epochs: int
    recipe: dict[str, Any] = {"method": "thin", "reuse": 1, "scoring": {"name": "RowScale", "bits": 8}}
    why: str = (  # this recipe
        "few bytes in both directions, private labels; a higher reuse sends even fewer bytes, but "
        "overfits small tables"
    )
    model: dict[str, Any] = {"name": "mlp", "hidden": [64], "width": 16}  # of tables
    label_model: dict[str, Any] | None = None  # of the label party's own columns; as the others' unless given
    job: dict[str, Any] = {}
    fusion: str = "sum"
    prepare: Settings = Settings()
    known: bool = False  # what is public about columns has to be said
    least: int = 1  # feature parties
    arrays: bool = False  # usual for it: test rows are arrays of their own, and rows stand in one order

    @property
    def split(self) -> dict[str, float]:
        """Shares of the rows that are kept back; where a guarantee is made, nothing steers by rows that it covers."""
        return {"test": 0.2} if self.known else {"validation": 0.1, "test": 0.2}

    @property
    def has_trees(self) -> bool:
        return is_trees(self.model)

    @property
    def fusion_keys(self) -> dict[str, str]:
        return {} if self.fusion == "sum" else {"fusion": self.fusion}


_TABLES = tomllib.loads(files("thinwire.job.wizard").joinpath("templates.toml").read_text(encoding="utf-8"))
TEMPLATES = {name: Template.model_validate(table) for name, table in _TABLES.items()}
_BY_MODEL = {"boosted_trees": "trees", "mlp": "tabular"}  # of tables


def choose_template(template: str | None, model: str | None) -> str | None:
    """The one that is named, or that of a model of tables; None where neither is said."""
    if template is not None and template not in TEMPLATES:
        raise BadInput(
            f"--template must be one of {', '.join(TEMPLATES)}, got {template!r}{did_you_mean(template, TEMPLATES)}"
        )
    if model is None:
        return template
    if model not in _BY_MODEL:
        hint = did_you_mean(model, _BY_MODEL)
        raise BadInput(f"--model must be one of {', '.join(_BY_MODEL)}, got {model!r}{hint}")
    if template not in (None, "tabular", _BY_MODEL[model]):
        raise BadInput(f"--model {model}: the template {template!r} already chooses a model; remove one of the two")
    return _BY_MODEL[model]


# What the writer of a job file was told: parties and their files, the label, the id -------------------------------


_DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|"}


@dataclass(frozen=True)
class FormatAnswers:
    """How a party's text file writes its cells, as far as it was said; the rest is found in the file."""

    delimiter: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    thousands: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, Sequence[str]], parties: Collection[str]) -> dict[str, FormatAnswers]:
        """From flags, by the field they set: latin-1 for all parties, bank:latin-1 for one."""
        said = {key: _by_party(texts, parties) for key, texts in options.items()}
        said["delimiter"] = {name: _DELIMITERS.get(sign, sign) for name, sign in said.get("delimiter", {}).items()}
        return {name: cls(**{key: texts.get(name) for key, texts in said.items()}) for name in parties}


@dataclass(frozen=True)
class JobAnswers:
    """Everything that a whole job needs."""

    template: str
    files: dict[str, Path]  # of each party, in the order given
    label: tuple[str, str]  # party, column or key
    ids: dict[str, str] | None = None  # of parties; None: guessed, like those of parties that are not in it
    id: str | None = None  # of the other parties, where they have such a column
    formats: Mapping[str, FormatAnswers] = field(default_factory=dict)  # of parties

    @classmethod
    def parse(
        cls,
        template: str,
        parties: Sequence[str],
        label: str,
        ids: Sequence[str],
        formats: Mapping[str, Sequence[str]] | None = None,
    ) -> JobAnswers:
        """From flags: bank=bank.csv, shop:bought, customer or bank:customer, and how files write their cells."""
        files = dict(_pair(text, "=", "--party", "bank=bank.csv") for text in parties)
        _require_different(list(files), parties)
        if len(files) < 2:
            raise BadInput(
                "--party: a job has at least two parties; give --party bank=bank.csv --party shop=shop.csv, or "
                "--core CORE.toml for one party's part of a job"
            )
        party, column = _pair(label, ":", "--label", "shop:bought")
        _require_party("--label", party, files)
        own = [text for text in ids if _names_party(text, files)]
        other = [text for text in ids if text not in own]
        if len(other) > 1:
            raise BadInput(
                f"--id: one column identifies the rows, got {', '.join(other)}; use PARTY:COLUMN where names differ"
            )
        paths, said = {name: Path(file) for name, file in files.items()}, FormatAnswers.parse(formats or {}, files)
        id = other[0] if other else None
        return cls(template, paths, (party, column), _by_party(own, files) or None, id, said)


@dataclass(frozen=True)
class CoreAnswers:
    """What all parties share: who takes part, and where they meet."""

    template: str
    parties: tuple[str, ...]  # feature parties, in the order that all of them keep
    label_party: str
    address: str = ""  # host:port

    @classmethod
    def parse(cls, template: str, parties: Sequence[str], label: str) -> CoreAnswers:
        """From flags: bank, shop; who holds the label."""
        _require_different(parties, parties)
        if ":" in label:
            raise BadInput(
                f"--label {label}: without files this is the core of a job, which names no column; write --label "
                f"{label.partition(':')[0]}, or give each party's file as in --party bank=bank.csv"
            )
        _require_party("--label", label, parties)
        return cls(template, tuple(name for name in parties if name != label), label)


@dataclass(frozen=True)
class PartAnswers:
    """One party's part of a job, beside the core that it got."""

    template: str | None  # None: as the core asks for
    core: Path
    party: str
    file: Path
    label: str | None = None  # column or key, at the label party
    id: str | None = None  # None: guessed
    format: FormatAnswers = FormatAnswers()

    @classmethod
    def parse(
        cls,
        template: str | None,
        core: Path,
        parties: Sequence[str],
        label: str,
        ids: Sequence[str],
        formats: Mapping[str, Sequence[str]] | None = None,
    ) -> PartAnswers:
        """From flags: bank=bank.csv; bought, or shop:bought; customer, or bank:customer."""
        if len(parties) != 1:
            raise BadInput(
                "--party: with --core, write only the part of one party, such as --party bank=bank.csv; got "
                f"{', '.join(parties)}"
            )
        if len(ids) > 1:
            raise BadInput(f"--id: one column identifies the rows, got {', '.join(ids)}")
        name, file = _pair(parties[0], "=", "--party", "bank=bank.csv")
        column, id = (text.removeprefix(f"{name}:") for text in (label, ids[0] if ids else ""))
        said = FormatAnswers.parse(formats or {}, [name])[name]
        return cls(template, core, name, Path(file), column or None, id or None, said)


def _by_party(texts: Sequence[str], parties: Collection[str]) -> dict[str, str]:
    """customer for all parties, bank:customer for one, which takes precedence."""
    every = [text for text in texts if not _names_party(text, parties)]
    found = dict.fromkeys(parties, every[-1]) if every else {}
    for text in texts:
        if text not in every:
            name, _, found[name] = text.partition(":")
    return found


def _names_party(text: str, parties: Collection[str]) -> bool:
    name, sign, _ = text.partition(":")
    return bool(sign) and name in parties


def _require_different(names: Collection[str], parties: Sequence[str]) -> None:
    if len(set(names)) != len(parties):
        raise BadInput(f"--party: every party needs a unique name, got {', '.join(parties)}")


def _require_party(option: str, name: str, parties: Collection[str]) -> None:
    if name not in parties:
        raise BadInput(
            f"{option}: no party is called {name!r}; there are {', '.join(parties)}{did_you_mean(name, parties)}"
        )


def _pair(text: str, sign: str, option: str, example: str) -> tuple[str, str]:
    left, found, right = text.partition(sign)
    if not found or not left or not right:
        raise BadInput(f"{option} {text}: write it as {option} {example}")
    return left, right
