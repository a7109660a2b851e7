"""The job file itself: every line that a newcomer will ask about says why it is there."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.data.prepare import Task
from thinwire.job.job_file import inline
from thinwire.job.registry import build_recipe
from thinwire.job.schema import JobFile
from thinwire.job.wizard.answers import JobAnswers
from thinwire.job.wizard.sections import DraftSection, SectionDraft, draft_sections
from thinwire.job.wizard.templates import Template
from thinwire.storage.atomic_file import replace_file

TEST_SHARE = 0.2
METRICS = {"binary": ["auc", "accuracy"], "multiclass": ["accuracy"], "regression": ["r2", "mae"]}


def format_job(draft: SectionDraft, path: Path) -> str:
    """TOML with comments."""
    test_share = 0.0 if draft.ids is None else TEST_SHARE
    job = {"batch_size": _batch_size(int(draft.rows * (1 - test_share))), "metrics": METRICS[draft.task]}
    fusion = {} if draft.template.fusion == "sum" else {"fusion": draft.template.fusion}
    parts = [_head(draft, path), job_section(draft.template, job, test_share)]
    parts += [recipe_section(draft.template), optimizer_section(), _network()]
    parts += [party_section("[[party]]", section) for section in draft.parties]
    parts.append(
        party_section("[label_party]", draft.label_party, {**build_top(draft.task, draft.classes), **fusion})
    )
    return "\n\n".join(parts) + "\n"


def list_commands(draft: SectionDraft, path: Path) -> list[str]:
    """What to type next, each with what it does."""
    align = [] if draft.ids is None or draft.ids.in_order else [f"thinwire align {path.name}"]
    return [*align, f"thinwire check {path.name}", f"thinwire train {path.name}"]


def _head(draft: SectionDraft, path: Path) -> str:
    what = {
        "align": "find the rows that all parties hold, by their ids",
        "check": "is everything right? what will it cost? who sees what?",
        "train": "train it here, with simulated parties",
    }
    lines = [f"  {line:32} {what[line.split()[1]]}" for line in list_commands(draft, path)]
    said = [f"A job for {draft.template.title}. Change what you like: docs/jobs.md explains every key.", *lines]
    return format_comment(said)


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
    said = format_comment([f"How the parties talk: {template.why}.", other])
    return "\n".join([said, "[recipe]", *_lines(template.recipe)])


def optimizer_section() -> str:
    return "\n".join(["[optimizer]", *_lines({"name": "adam", "lr": 0.003})])


def _network() -> str:
    return format_comment(
        [
            "Between organisations (docs/network.md): `thinwire certs`, then `thinwire party` at each of them.",
            "[network]",
            'address = "fl.example.org:7443"  # where the label party can be reached',
        ]
    )


def build_top(task: Task, classes: int) -> dict[str, Any]:
    """The label party's keys that follow from the labels."""
    loss = "squared_error" if task == "regression" else "cross_entropy"
    return {"top": {"name": "linear_top", "classes": classes}, "loss": loss}


def party_section(head: str, section: DraftSection, more: Mapping[str, Any] | None = None) -> str:
    keys = {"name": section.name, **section.keys, **(more or {})}
    said = {
        "alignment": "written by `thinwire align`",
        "prepare": "gaps, categories, dates and scales, fitted on training rows",
    }
    if section.keys.get("prepare", {}).get("known"):
        said["prepare"] = "only what is public: nothing is fitted"
    return "\n".join([*([format_comment(section.about)] if section.about else []), head, *_lines(keys, said)])


def _lines(keys: Mapping[str, Any], said: Mapping[str, str] | None = None) -> list[str]:
    found = {key: f"{key} = {inline(value)}" for key, value in keys.items()}
    return [f"{text}  # {said[key]}" if said and key in said else text for key, text in found.items()]


def format_comment(lines: list[str] | tuple[str, ...]) -> str:
    """What came from a file must not end the comment."""
    printable = ("".join(sign if sign.isprintable() else "?" for sign in line) for line in lines)
    return "\n".join(f"# {line}".rstrip() for line in printable)


def _batch_size(rows: int) -> int:
    """A power of two, about a twentieth of the rows."""
    size = 16
    while size < 256 and size * 20 < rows:
        size *= 2
    return max(1, min(size, rows))


def require_free(path: Path, force: bool) -> None:
    """Nothing is overwritten unasked."""
    if path.exists() and not force:
        raise BadInput(f"{path} is there already; give another name, or --force to write it anew")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is no folder")


def save_file(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None


@dataclass(frozen=True)
class WrittenJob:
    """Where the job file is, what was found, and what to do next."""

    path: Path
    rows: int  # that all parties hold
    ids: dict[str, str] | None
    task: str
    commands: list[str]


def write_job(asked: JobAnswers, path: Path, force: bool = False) -> WrittenJob:
    """Looks at the files, then writes the job."""
    require_free(path, force)
    draft = draft_sections(asked, path.parent)
    text = format_job(draft, path)
    file = JobFile.model_validate(tomllib.loads(text))  # what is written can be read
    build_recipe("recipe", file.recipe).check(len(file.party), file.label_party.fusion)
    save_file(path, text)
    columns = None if draft.ids is None else draft.ids.columns
    return WrittenJob(path, draft.rows, columns, draft.task, list_commands(draft, path))
