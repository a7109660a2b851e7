"""The core of a job between organisations: what all of them share; no data is looked at, and none is named."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from thinwire.init.asked import AskedCore
from thinwire.init.saving import require_free, saved
from thinwire.init.section import Section
from thinwire.init.sections import require_parties
from thinwire.init.templates import TEMPLATES, Template
from thinwire.init.writing import (
    TEST_SHARE,
    comment,
    job_section,
    optimizer_section,
    party_section,
    recipe_section,
)
from thinwire.job.own_part import roster_of
from thinwire.job.reading import text_of
from thinwire.job.toml_text import inline

__all__ = ["WrittenCore", "written_core"]

_BATCH_SIZE = 64


@dataclass(frozen=True)
class WrittenCore:
    """Where the core is, whom it names, and what each of them does next."""

    path: Path
    parties: list[str]
    label_party: str
    commands: list[str]


def written_core(asked: AskedCore, path: Path, force: bool = False) -> WrittenCore:
    require_free(path, force)
    require_parties(asked.template, len(asked.parties))
    text = _text(asked, path)
    roster_of(text_of(path, tomllib.loads(text)))  # what is written can be read, and could run
    saved(path, text)
    every = [*asked.parties, asked.label_party]
    certs = f"thinwire certs certs {' '.join(f'--party {name}' for name in every)}"
    return WrittenCore(path, list(asked.parties), asked.label_party, [certs, *_parts(asked, path)])


def _text(asked: AskedCore, path: Path) -> str:
    template = TEMPLATES[asked.template]
    head = [
        f"The core of a job for {template.title}: the same file at every organisation.",
        "It names no data and no code. Each writes its own part beside it, after a look at its own file alone:",
        *(f"  {line}" for line in _parts(asked, path)),
    ]
    parts = [
        comment(head),
        job_section(template, {"batch_size": _BATCH_SIZE}, 0.0 if template.arrays else TEST_SHARE),
    ]
    parts += [recipe_section(template), optimizer_section(), _network(asked.address)]
    parts += [party_section("[[party]]", Section(name, (), {})) for name in asked.parties]
    fusion = {} if template.fusion == "sum" else {"fusion": template.fusion}
    parts.append(party_section("[label_party]", Section(asked.label_party, _about_widths(template), fusion)))
    return "\n\n".join(parts) + "\n"


def _parts(asked: AskedCore, path: Path) -> list[str]:
    """A command for each organisation."""
    template = "" if asked.template == "tabular" else f" --template {asked.template}"
    begun = {
        name: f"thinwire init {name}.toml --core {path.name} --party {name}=FILE{template}"
        for name in (*asked.parties, asked.label_party)
    }
    begun[asked.label_party] += " --label COLUMN"
    return list(begun.values())


def _network(address: str) -> str:
    said = comment(["Certificates are looked for in certs/ beside each part: `thinwire certs` makes them, once."])
    return f"{said}\n[network]\naddress = {inline(address)}  # where the label party can be reached"


def _about_widths(template: Template) -> tuple[str, ...]:
    if template.fusion == "concat":
        return ()
    return (f"Embeddings are added up, so all bottom models are of one width: {template.model['width']} here.",)
