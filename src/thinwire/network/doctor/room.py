"""Is there enough memory and disk, and is the run's folder free?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from thinwire.at_rest import files_of, layout
from thinwire.errors import BadInput
from thinwire.job.dry_run import surrogate_bytes, workset_bytes
from thinwire.job.job_snapshot import require_same_text
from thinwire.job.party_view import PartyView
from thinwire.network.doctor.check import BytesShown, Check, not_checked, ok, problem, warning
from thinwire.network.doctor.own_data import OwnData, parameters, tables
from thinwire.runs import PrivateState
from thinwire.types import PartyName

__all__ = ["like_ours", "room"]

_MUCH = 0.8  # of what is free
_COPIES_OF_WEIGHTS = 4  # weights, gradients, and two averages of an optimiser
_GENERATIONS = 3  # of checkpoints: two that stay, and one that is being written
_LEAST_DISK = 50_000_000  # logs of what was sent, events, models
_MEMINFO = Path("/proc/meminfo")


def like_ours(own: PartyView, held: OwnData | None) -> dict[PartyName, int]:
    """The other parties' widths are not known here; they are mostly alike."""
    names = (*own.feature_parties, *((own.label_party,) if own.roster.label_party_has_features else ()))
    return {} if held is None else dict.fromkeys(names, held.width)


def room(
    own: PartyView, held: OwnData | None, widths: Mapping[PartyName, int], folder: Path, bytes_shown: BytesShown
) -> Iterator[Check]:
    if held is None:
        yield from not_checked(("memory",), "needs the data")
        state = 0
    else:
        known = widths if set(own.feature_parties) <= set(widths) else {}
        state = _state_bytes(own, held, known)
        data = sum(table.nbytes for table in tables(held).values())
        yield _memory(data, state, "" if known else " (--wait counts the others' embeddings too)", bytes_shown)
    yield _run_folder(own, held, folder)
    yield _disk(folder, _GENERATIONS * state + _LEAST_DISK, bytes_shown)


def _state_bytes(own: PartyView, held: OwnData, widths: Mapping[PartyName, int]) -> int:
    """Surrogates, workset and models, as the simulator's preview counts them."""
    weights = 0 if held.bottom is None else 4 * _COPIES_OF_WEIGHTS * parameters(held.bottom)
    if not widths:
        return weights
    batch, rounds = own.settings.batch_size or held.rows, own.settings.divide_rows(held.rows).rounds
    surrogates = surrogate_bytes(own.recipe, own.label_party, held.rows, widths)
    worksets = workset_bytes(own.recipe, own.label_party, batch, rounds, widths)
    return weights + surrogates[own.me] + worksets[own.me]


def _memory(data: int, state: int, caveat: str, bytes_shown: BytesShown) -> Check:
    free = _free_memory()
    facts = {"data_bytes": data, "state_bytes": state, "free_bytes": free}
    says = f"{bytes_shown(data)} of data, about {bytes_shown(state)} of surrogates, workset and models{caveat}"
    if free is None:
        return ok("memory", f"{says}; how much is free is not known here", **facts)
    says += f"; {bytes_shown(free)} are free beside the data"
    way_out = "take a machine with more memory, fewer rows, narrower embeddings, or a recipe without surrogates"
    if state > free:
        return problem("memory", says, way_out, **facts)
    return warning("memory", says, way_out, **facts) if state > _MUCH * free else ok("memory", says, **facts)


def _free_memory() -> int | None:
    """Bytes, where the system says it."""
    try:
        lines = _MEMINFO.read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _run_folder(own: PartyView, held: OwnData | None, folder: Path) -> Check:
    if not (folder / layout.PRIVATE).exists():
        return ok("run folder", f"{folder} is new: the run begins there")
    try:
        private = PrivateState.open(folder, files_of(folder, own.encryption_key))
        if private.aborted is not None:
            return problem(
                "run folder", f"the run in {folder} was aborted by {private.aborted!r}", "give another --out"
            )
        if held is not None and (folder / layout.JOB).exists():
            require_same_text(folder, own.resolved_text(), own.data_digests(held.data))
    except BadInput as error:
        return problem("run folder", "holds another run, or cannot be read", str(error))
    if private.finished:
        return warning("run folder", f"the run in {folder} has finished", "a new run needs another --out")
    return ok("run folder", f"{folder} holds this run, and it goes on there", starts=private.incarnation)


def _disk(folder: Path, needed: int, bytes_shown: BytesShown) -> Check:
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        return problem("disk", f"{there} cannot be written to", "give another --out, or the right to write there")
    free = shutil.disk_usage(there).free
    facts = {"needed_bytes": needed, "free_bytes": free}
    says = f"about {bytes_shown(needed)} for checkpoints and logs, {bytes_shown(free)} are free"
    way_out = f"free some space on the disk of {there}, or give an --out on another one"
    if needed > free:
        return problem("disk", says, way_out, **facts)
    return warning("disk", says, way_out, **facts) if needed > _MUCH * free else ok("disk", says, **facts)
