"""`thinwire align`: which rows all parties hold, found without showing any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinwire.base.errors import BadInput
from thinwire.base.format import format_bytes
from thinwire.cli.output import print_result, require_approval, say
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from thinwire.align import Alignment, Backend
    from thinwire.align import Terms as AlignTerms
    from thinwire.job.row_selection import RowSource


def align(
    job: Path,
    name: str | None = None,
    *,
    settings: list[str] = [],
    test: bool = False,
    min_overlap: str = "1",
    workers: int | None = None,
    spu_python: str | None = None,
    yes: bool = False,
    as_json: bool = False,
) -> None:
    """Find the rows that all parties share, by private set intersection, and put them into the same order."""
    from thinwire.align import Terms

    terms, prefix = Terms(_parse_overlap(min_overlap)), "test_" if test else ""
    engine = None if spu_python is None else _find_engine(spu_python, workers)
    request = _Request(job, settings, prefix, terms, workers, engine)
    found = _align_here(request) if name is None else _between_organisations(request, name, yes)
    print_result(found, as_json, _format_lines(found))


@dataclass(frozen=True)
class _Request:
    """What is to be aligned, and how."""

    job: Path
    settings: Sequence[str]
    prefix: str
    terms: AlignTerms
    workers: int | None
    engine: Backend | None


def _find_engine(python: str, workers: int | None) -> Backend | None:
    """RR22, or None and one sentence that says why not: the default matches everything."""
    from thinwire.align.rr22 import find_rr22

    try:
        return replace(find_rr22(python), cores=workers)
    except BadInput as error:
        say(f"{error}; large sets are matched by ristretto255")
        return None


def _align_here(request: _Request) -> dict[str, Any]:
    """All parties in this process, by the same messages."""
    from thinwire.align import intersect
    from thinwire.job.job_file import read_text
    from thinwire.job.messages import within
    from thinwire.job.row_selection import RowSource
    from thinwire.job.schema import RosterFile

    with within(str(request.job)):
        text = read_text(request.job, request.settings)
    folder = request.job.resolve().parent
    with text.locate_errors():
        file = text.validate(RosterFile)
        rows = {one.name: RowSource(one, folder, request.prefix) for one in (*file.party, file.label_party)}
        grouped = {one.name: one.group for one in file.party if one.group is not None}
        ids = {name: one.ids if grouped else one.store_ids() for name, one in rows.items()}
        groups = {name: rows[file.label_party.name].read_owners(column) for name, column in grouped.items()}
    with ProgressLine("ids", 0) as progress:
        found = intersect(
            ids,
            file.label_party.name,
            min_overlap=request.terms.min_overlap,
            workers=request.workers,
            on_progress=progress.count,
            groups=groups,
            workspaces={name: replace(one.workspace, engine=request.engine) for name, one in rows.items()},
        )
    return _write({name: (one, found[name]) for name, one in rows.items()}, found.ledger.total().bytes)


def _between_organisations(request: _Request, name: str, yes: bool) -> dict[str, Any]:
    from thinwire.align import ristretto
    from thinwire.align.party import AligningParty
    from thinwire.job.disclosure import describe_alignment
    from thinwire.job.party_view import read_party_view
    from thinwire.job.row_selection import RowSource

    own = read_party_view(request.job, name, request.settings)
    own.network_party.load_credentials()
    grouped = own.roster.grouped
    require_approval(describe_alignment(own.me, own.label_party, own.feature_parties, grouped), own.me, yes)
    rows = RowSource(own.section, own.folder, request.prefix)
    with own.text.locate_errors():
        ids = rows.ids if grouped else rows.store_ids()
        groups = {name: rows.read_owners(column) for name, column in grouped.items() if own.is_label_party}
    party = AligningParty(own.network_party, rows.what, say, tuple(grouped))
    room = replace(rows.workspace, engine=request.engine)
    with ristretto(request.workers) as backend, ProgressLine("ids", 0) as progress:
        found = party.align(ids, backend, request.terms, progress.count, groups, room)
    return _write({own.me: (rows, found)}, party.ledger.total().bytes)


def _parse_overlap(text: str) -> int | float:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise BadInput(f"--min-overlap must be a number of rows, or a fraction such as 0.5, got {text!r}") from None


def _write(found: dict[str, tuple[RowSource, Alignment]], total: int) -> dict[str, Any]:
    from thinwire.align import write_alignment

    files, missing = {}, []
    for name, (rows, alignment) in found.items():
        file = rows.file
        write_alignment(file, alignment)
        rows.workspace.clear()
        files[name] = str(file)
        if rows.alignment_file is None:
            missing.append(f'{rows.section.path}: {rows.prefix}alignment = "{file.name}"')
    alignment = next(iter(found.values()))[1]
    owners = {name: one.match_count for name, (_, one) in found.items() if one.is_grouped}
    for _, one in found.values():
        owners |= {party: int(index.max()) + 1 for party, index in one.owners.items()}
    sizes: dict[str, int] = {}
    pairwise: dict[str, int] = {}
    for _, one in found.values():
        sizes |= one.sizes
        pairwise |= one.pairwise or {}
    return {
        "rows": len(alignment),
        "digest": alignment.digest,
        "ids": sizes,
        "pairwise": pairwise,
        "owners": owners,
        "bytes": total,
        "files": files,
        "to_add": missing,
    }


def _format_lines(found: dict[str, Any]) -> list[str]:
    brought = ", ".join(f"{party} {count}" for party, count in found["ids"].items())
    lines = [f"all parties share {found['rows']} rows (ids: {brought}); {format_bytes(found['bytes'])} sent"]
    lines += [f"  they have {count} owners at {party}" for party, count in found["owners"].items()]
    if found["pairwise"]:
        pairs = ", ".join(f"{count} with {party}" for party, count in found["pairwise"].items())
        lines.append(f"  the label party also learned how many ids it shares with each party: {pairs}")
    lines += [f"  {party}: {file}" for party, file in found["files"].items()]
    lines.append(f"  digest {found['digest'][:16]}, the same at every party")
    if found["to_add"]:
        lines.append("to train on these rows, add to the job file:")
        lines += [f"  {line}" for line in found["to_add"]]
    return lines
