"""The job file itself: every line that a newcomer will ask about says why it is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thinwire.init.section import Section
from thinwire.init.sections import Drafted
from thinwire.init.templates import Template
from thinwire.job.toml_text import inline
from thinwire.prepare import Task

__all__ = [
    "METRICS",
    "TEST_SHARE",
    "commands",
    "comment",
    "job_section",
    "job_text",
    "optimizer_section",
    "party_section",
    "recipe_section",
    "top_of",
]

TEST_SHARE = 0.2
METRICS = {"binary": ["auc", "accuracy"], "multiclass": ["accuracy"], "regression": ["r2", "mae"]}


def job_text(draft: Drafted, path: Path) -> str:
    """TOML with comments."""
    test_share = 0.0 if draft.ids is None else TEST_SHARE
    job = {"batch_size": _batch_size(int(draft.rows * (1 - test_share))), "metrics": METRICS[draft.task]}
    fusion = {} if draft.template.fusion == "sum" else {"fusion": draft.template.fusion}
    parts = [_head(draft, path), job_section(draft.template, job, test_share)]
    parts += [recipe_section(draft.template), optimizer_section(), _network()]
    parts += [party_section("[[party]]", section) for section in draft.parties]
    parts.append(party_section("[label_party]", draft.label_party, {**top_of(draft.task, draft.classes), **fusion}))
    return "\n\n".join(parts) + "\n"


def commands(draft: Drafted, path: Path) -> list[str]:
    """What to type next, each with what it does."""
    align = [] if draft.ids is None or draft.ids.in_order else [f"thinwire align {path.name}"]
    return [*align, f"thinwire check {path.name}", f"thinwire train {path.name}"]


def _head(draft: Drafted, path: Path) -> str:
    what = {
        "align": "find the rows that all parties hold, by their ids",
        "check": "is everything right? what will it cost? who sees what?",
        "train": "train it here, with simulated parties",
    }
    lines = [f"  {line:32} {what[line.split()[1]]}" for line in commands(draft, path)]
    said = [f"A job for {draft.template.title}. Change what you like: docs/jobs.md explains every key.", *lines]
    return comment(said)


def job_section(template: Template, keys: Mapping[str, Any], test_share: float) -> str:
    """`test_share` of the rows is kept back by their ids; 0 where test rows are arrays of their own."""
    keys = {"epochs": template.epochs, **keys, **template.job}
    said = {
        "epochs": "how often training sees every row",
        "batch_size": "rows a round; smaller: more rounds, more bytes",
        "metrics": "the first one decides which evaluation is best",
        "training": "each row's gradient is clipped, and noise is added: so a row can be proven to matter little",
    }
    lines = ["[job]", *_lines(keys, said)]
    if test_share:
        lines.append(
            "# The same rows are kept back for testing at every party: a hash of the id decides, nobody has to talk."
        )
        lines.append(f"split = {{ test = {test_share} }}")
    if template.known:
        lines.append("# budget = { epsilon = 8.0 }  # stop before a row has lost more; `thinwire privacy` plans it")
    return "\n".join(lines)


def recipe_section(template: Template) -> str:
    other = "`thinwire compare` tries several, `thinwire methods` lists them."
    said = comment([f"How the parties talk: {template.why}.", other])
    return "\n".join([said, "[recipe]", *_lines(template.recipe)])


def optimizer_section() -> str:
    return "\n".join(["[optimizer]", *_lines({"name": "adam", "lr": 0.003})])


def _network() -> str:
    return comment(
        [
            "Between organisations (docs/network.md): `thinwire certs`, then `thinwire party` at each of them.",
            "[network]",
            'address = "fl.example.org:7443"  # where the label party can be reached',
        ]
    )


def top_of(task: Task, classes: int) -> dict[str, Any]:
    """The label party's keys that follow from the labels."""
    loss = "squared_error" if task == "regression" else "cross_entropy"
    return {"top": {"name": "linear_top", "classes": classes}, "loss": loss}


def party_section(head: str, section: Section, more: Mapping[str, Any] | None = None) -> str:
    keys = {"name": section.name, **section.keys, **(more or {})}
    said = {
        "alignment": "written by `thinwire align`",
        "prepare": "gaps, categories, dates and scales, fitted on training rows",
    }
    if section.keys.get("prepare", {}).get("known"):
        said["prepare"] = "only what is public: nothing is fitted"
    return "\n".join([*([comment(section.about)] if section.about else []), head, *_lines(keys, said)])


def _lines(keys: Mapping[str, Any], said: Mapping[str, str] | None = None) -> list[str]:
    found = {key: f"{key} = {inline(value)}" for key, value in keys.items()}
    return [f"{text}  # {said[key]}" if said and key in said else text for key, text in found.items()]


def comment(lines: list[str] | tuple[str, ...]) -> str:
    """What came from a file must not end the comment."""
    printable = ("".join(sign if sign.isprintable() else "?" for sign in line) for line in lines)
    return "\n".join(f"# {line}".rstrip() for line in printable)


def _batch_size(rows: int) -> int:
    """A power of two, about a twentieth of the rows."""
    size = 16
    while size < 256 and size * 20 < rows:
        size *= 2
    return max(1, min(size, rows))
