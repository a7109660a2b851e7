"""From a look at all parties' files to a whole job."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from thinwire.init.asked import Asked
from thinwire.init.saving import require_free, saved
from thinwire.init.sections import drafted
from thinwire.init.writing import commands, job_text
from thinwire.job.calls import recipe_of
from thinwire.job.schema import JobFile

__all__ = ["Written", "written_job"]


@dataclass(frozen=True)
class Written:
    """Where the job file is, what was found, and what to do next."""

    path: Path
    rows: int  # that all parties hold
    ids: dict[str, str] | None
    task: str
    commands: list[str]


def written_job(asked: Asked, path: Path, force: bool = False) -> Written:
    """Looks at the files, then writes the job."""
    require_free(path, force)
    draft = drafted(asked, path.parent)
    text = job_text(draft, path)
    file = JobFile.model_validate(tomllib.loads(text))  # what is written can be read
    recipe_of("recipe", file.recipe).check(len(file.party), file.label_party.fusion)
    saved(path, text)
    columns = None if draft.ids is None else draft.ids.columns
    return Written(path, draft.rows, columns, draft.task, commands(draft, path))
