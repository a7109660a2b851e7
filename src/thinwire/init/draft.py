"""From what was asked to a job file on disk that is whole, or none."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import BadInput
from thinwire.init.asked import Asked
from thinwire.init.sections import drafted
from thinwire.init.writing import commands, job_text
from thinwire.job.calls import recipe_of
from thinwire.job.schema import JobFile

__all__ = ["Written", "require_free", "written_job"]


@dataclass(frozen=True)
class Written:
    """Where the job file is, what was found, and what to do next."""

    path: Path
    rows: int  # that all parties hold
    ids: dict[str, str] | None
    task: str
    commands: list[str]


def require_free(path: Path, force: bool) -> None:
    """Nothing is overwritten unasked."""
    if path.exists() and not force:
        raise BadInput(f"{path} is there already; give another name, or --force to write it anew")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is no folder")


def written_job(asked: Asked, path: Path, force: bool = False) -> Written:
    """Looks at the files, then writes the job."""
    require_free(path, force)
    draft = drafted(asked, path.parent)
    text = job_text(draft, path)
    file = JobFile.model_validate(tomllib.loads(text))  # what is written can be read
    recipe_of("recipe", file.recipe).check(len(file.party), file.label_party.fusion)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    columns = None if draft.ids is None else draft.ids.columns
    return Written(path, draft.rows, columns, draft.task, commands(draft, path))
