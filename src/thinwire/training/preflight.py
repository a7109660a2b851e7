"""`thinwire doctor`: everything that would stop a run later, one check after the other, whatever the others found.

for check in run_checks(DoctorRequest(Path("job.toml"), "bank", folder=Path("runs/job/bank")), format_bytes):
    ...                                    # as they come: some wait for the network
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from thinwire import __version__
from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName
from thinwire.engine.programs.parties import FeatureParty
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.job_loader import LabelData
from thinwire.job.job_snapshot import digest_tables, require_same_text
from thinwire.job.own_code import CodeSources
from thinwire.job.party_view import PartyView, count_rows, read_party_view
from thinwire.net.doctor.check import (
    BytesShown,
    Check,
    Checks,
    CheckVerdict,
    check_certificates,
    ok,
    problem,
    skip_checks,
    warning,
)
from thinwire.net.doctor.dial import check_call
from thinwire.net.doctor.listen import check_listening
from thinwire.net.grpc.client import grpc
from thinwire.net.handshake import ProbeHello
from thinwire.storage import layout
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.private_state import PrivateState
from thinwire.training.dry_run import surrogate_bytes, workset_bytes


@dataclass(frozen=True)
class DoctorRequest:
    """What is examined: a party of a job, the folder of its run, and how long to wait for the others."""

    job: Path
    name: PartyName
    folder: Path
    wait_seconds: float = 0.0
    settings: Sequence[str] = ()
    code: CodeSources = CodeSources()  # whose modules may be built


_OF_THE_JOB = ("recipe", "approval", "key", "name", "certificate", "revoked list", "row ids", "data", "model")
_OF_THE_MACHINE = ("memory", "run folder", "disk")


def run_checks(request: DoctorRequest, format_bytes: BytesShown) -> Iterator[Check]:
    """Every check, in order; those that need what another one did not find are not made, and say so."""
    yield check_versions()
    own = yield from check_job_file(request)
    if own is None:
        yield from skip_checks((*_OF_THE_JOB, *_OF_THE_MACHINE, "network"), "needs the job file")
        return
    yield from check_recipe(own)
    credentials = yield from check_certificates(own.network_party)
    brought, held = yield from check_own_rows(own)
    if own.is_label_party:
        widths = yield from check_listening(
            own.network_party, credentials, brought, request.wait_seconds, request.folder
        )
        yield check_top_model(own, held, widths)
        yield from check_room(own, held, widths, request.folder, format_bytes)
    else:
        yield from check_room(own, held, guess_widths(own, held), request.folder, format_bytes)
        yield from check_call(own.network_party, credentials, brought, request.wait_seconds)


def check_versions() -> Check:
    found = {"python": platform.python_version(), "thinwire": __version__, "torch": torch.__version__}
    found["grpc"] = str(grpc.__version__)
    return ok("versions", ", ".join(f"{name} {version}" for name, version in found.items()), **found)


def check_job_file(request: DoctorRequest) -> Checks[PartyView | None]:
    try:
        own = read_party_view(request.job, request.name, request.settings, request.code)
    except BadInput as error:
        yield problem("job file", "cannot be used", str(error))
        return None
    role = "the label party" if own.is_label_party else f"a feature party; the label party is {own.label_party!r}"
    yield ok("job file", f"{request.job}: {own.me!r} is {role}", parties=[*own.feature_parties, own.label_party])
    return own


def check_recipe(own: PartyView) -> Iterator[Check]:
    consent = own.consent
    says = f"{own.recipe.name}, agreement digest {consent.digest[:16]}"
    yield ok("recipe", says, *consent.list_terms()[1:], digest=consent.digest, who_sees=own.who_sees())
    try:
        approved = consent.is_approved()
    except BadInput as error:
        yield problem("approval", "another agreement was approved", str(error))
        return
    if approved:
        yield ok("approval", f"{own.me!r} has approved this agreement")
    else:
        way_out = f'use --yes with `thinwire party`, or set approved = "{consent.digest[:16]}" in its section'
        yield warning("approval", f"this agreement is not yet approved for {own.me!r}", way_out)


@dataclass(frozen=True)
class OwnData:
    """A party's own tables, read, and its bottom model."""

    data: FeatureParty | LabelData
    rows: int
    held_out: Mapping[HeldOut, int]

    @property
    def width(self) -> int:
        """0 where it has no features."""
        return self.data.width or 0


def check_own_rows(own: PartyView) -> Checks[tuple[ProbeHello, OwnData | None]]:
    """Says of itself to the others what could be read: sizes and digests."""
    digests = yield from _row_ids(own)
    held = yield from _data(own)
    brought = ProbeHello(party=own.me, version=__version__, agreement=own.agreement())
    if held is not None:
        counts = {f"{which}_rows": held.held_out.get(which, 0) for which in HeldOut}
        sizes = {"rows": held.rows, **counts, "width": held.width}
        brought = brought.model_copy(update={**sizes, **digests})
    return brought, held


def _row_ids(own: PartyView) -> Checks[dict[str, str | None]]:
    try:
        ids, found = own.row_ids(), own.row_digests()
    except BadInput as error:
        yield problem("row ids", "cannot be read", str(error))
        return {}
    if ids is None:
        way_out = f"name them in the section of {own.me!r} as ids = {{ file, column }}; only a digest travels"
        yield warning(
            "row ids",
            "not given: thinwire cannot check that all parties hold the same rows in the same order",
            way_out,
        )
    else:
        yield ok("row ids", f"{ids.count} ids, all different, digest {ids.digest[:12]}", **found)
    return found


def _data(own: PartyView) -> Checks[OwnData | None]:
    foreign = [module for module in own.modules.values() if not own.code.allow(module)]
    if foreign:
        says = f"the job names code, {', '.join(foreign)}: it does not run here unless --code ./FOLDER allows it"
        yield from skip_checks(("data", "model"), says)
        return None
    try:
        data = own.load_data()
    except BadInput as error:
        yield problem("data", "cannot be used", str(error))
        yield from skip_checks(("model",), "needs the data")
        return None
    held = OwnData(data, *count_rows(data))
    shapes = {name: list(table.shape) for name, table in list_tables(held).items()}
    kept = {f"{which}_rows": held.held_out.get(which, 0) for which in HeldOut}
    rows = ", ".join(
        [f"{held.rows} training rows", *(f"{kept[f'{which}_rows'] or 'no'} {which} rows" for which in HeldOut)]
    )
    says = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
    yield ok("data", f"{rows} ({says})", rows=held.rows, **kept, shapes=shapes)
    if held.data.bottom is None:
        yield ok("model", "no bottom model: this party has no features")
    else:
        count = count_parameters(held.data.bottom)
        yield ok("model", f"{count} parameters, embedding of width {held.width}", parameters=count, width=held.width)
    return held


def list_tables(held: OwnData) -> dict[str, Tensor]:
    kinds = ("", *(f"{which}_" for which in HeldOut))
    names = [f"{kind}{what}" for what in ("features", "labels") for kind in kinds]
    found = {name: getattr(held.data, name, None) for name in names}
    return {name.replace("_", " "): table for name, table in found.items() if isinstance(table, Tensor)}


def count_parameters(module: nn.Module) -> int:
    return sum(part.numel() for part in module.parameters())


def check_top_model(own: PartyView, held: OwnData | None, widths: Mapping[PartyName, int]) -> Check:
    if held is None or not isinstance(held.data, LabelData):
        return Check("top model", CheckVerdict.NOT_CHECKED, "needs the data")
    unknown = [name for name in own.feature_parties if name not in widths]
    if unknown:
        says = (
            f"needs the embeddings' widths of {', '.join(map(repr, unknown))}: --wait SECONDS while their doctors run"
        )
        return Check("top model", CheckVerdict.NOT_CHECKED, says)
    try:
        party = own.build_label_party(held.data, widths)
    except BadInput as error:
        return problem("top model", "does not fit the parties' embeddings", str(error))
    count, shown = count_parameters(party.top), ", ".join(f"{name} {width}" for name, width in widths.items())
    return ok("top model", f"{count} parameters, for embeddings of width {shown}", parameters=count)


_MUCH = 0.8  # of what is free
_COPIES_OF_WEIGHTS = 4  # weights, gradients, and two averages of an optimiser
_GENERATIONS = 3  # of checkpoints: two that stay, and one that is being written
_LEAST_DISK = 50_000_000  # logs of what was sent, events, models
_MEMINFO = Path("/proc/meminfo")


def guess_widths(own: PartyView, held: OwnData | None) -> dict[PartyName, int]:
    """The other parties' widths are not known here; they are mostly alike."""
    names = (*own.feature_parties, *((own.label_party,) if own.roster.label_party_has_features else ()))
    return {} if held is None else dict.fromkeys(names, held.width)


def check_room(
    own: PartyView, held: OwnData | None, widths: Mapping[PartyName, int], folder: Path, format_bytes: BytesShown
) -> Iterator[Check]:
    if held is None:
        yield from skip_checks(("memory",), "needs the data")
        state = 0
    else:
        known = widths if set(own.feature_parties) <= set(widths) else {}
        state = _state_bytes(own, held, known)
        data = sum(table.nbytes for table in list_tables(held).values())
        yield _memory(data, state, "" if known else " (--wait counts the others' embeddings too)", format_bytes)
    yield _run_folder(own, held, folder)
    yield _disk(folder, _GENERATIONS * state + _LEAST_DISK, format_bytes)


def _state_bytes(own: PartyView, held: OwnData, widths: Mapping[PartyName, int]) -> int:
    """Surrogates, workset and models, as the simulator's preview counts them."""
    weights = 0 if held.data.bottom is None else 4 * _COPIES_OF_WEIGHTS * count_parameters(held.data.bottom)
    if not widths:
        return weights
    batch, rounds = own.settings.batch_size or held.rows, own.settings.divide_rows(held.rows).rounds
    surrogates = surrogate_bytes(own.recipe, own.label_party, held.rows, widths, _count_owners(own, held))
    worksets = workset_bytes(own.recipe, own.label_party, batch, rounds, widths)
    return weights + surrogates[own.me] + worksets[own.me]


def _count_owners(own: PartyView, held: OwnData) -> dict[PartyName, int]:
    """Of rows with one in common, as far as they are known here."""
    if isinstance(held.data, LabelData):
        return {name: groups.training.count for name, groups in held.data.owners.items()}
    return {} if held.data.owners is None else {own.me: held.data.owners.training.count}


def _memory(data: int, state: int, caveat: str, format_bytes: BytesShown) -> Check:
    free = _free_memory()
    facts = {"data_bytes": data, "state_bytes": state, "free_bytes": free}
    says = f"{format_bytes(data)} of data, about {format_bytes(state)} of surrogates, workset and models{caveat}"
    if free is None:
        return ok("memory", f"{says}; the amount of free memory is unknown here", **facts)
    says += f"; {format_bytes(free)} are free besides the data"
    way_out = "use a machine with more memory, fewer rows, narrower embeddings, or a recipe without surrogates"
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
        return ok("run folder", f"{folder} is new: the run starts there")
    try:
        private = PrivateState.open(folder, open_folder(folder, own.encryption_key))
        if private.abort_reason is not None:
            return problem(
                "run folder", f"the run in {folder} was aborted by {private.abort_reason!r}", "use a different --out"
            )
        if held is not None and (folder / layout.JOB).exists():
            require_same_text(folder, own.format_document(), digest_tables(own.me, held.data))
    except BadInput as error:
        return problem("run folder", "holds another run, or cannot be read", str(error))
    if private.is_finished:
        return warning("run folder", f"the run in {folder} has finished", "a new run needs another --out")
    return ok("run folder", f"{folder} holds this run, which resumes there", starts=private.incarnation)


def _disk(folder: Path, needed: int, format_bytes: BytesShown) -> Check:
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        return problem("disk", f"{there} cannot be written to", "use a different --out, or grant write permission")
    free = shutil.disk_usage(there).free
    facts = {"needed_bytes": needed, "free_bytes": free}
    says = f"about {format_bytes(needed)} for checkpoints and logs, {format_bytes(free)} are free"
    way_out = f"free some space on the disk of {there}, or give an --out on another one"
    if needed > free:
        return problem("disk", says, way_out, **facts)
    return warning("disk", says, way_out, **facts) if needed > _MUCH * free else ok("disk", says, **facts)
