"""Before a run: everything that would stop it later, one check after the other, whatever the ones before found.

for check in examined(Patient(Path("job.toml"), "bank", folder=Path("runs/job/bank"))):
    ...                                    # as they come: some wait for the network
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from thinwire import __version__
from thinwire.errors import BadInput, ThinwireError
from thinwire.job.endpoint import Endpoint
from thinwire.job.job import embedding_width
from thinwire.job.own_part import LabelData, OwnPart, read_own_part
from thinwire.job.preview import surrogate_bytes, workset_bytes
from thinwire.job.saved import require_same_text
from thinwire.job.stand_ins import Rows, absent_feature_party, absent_label_party, job_of
from thinwire.network.consent import Terms
from thinwire.network.probing import (
    Brought,
    Measured,
    Rate,
    Reception,
    Trouble,
    Way,
    measured,
    printable,
    shake_hands,
    target_of,
)
from thinwire.party import FeatureParty
from thinwire.runs import PrivateState
from thinwire.runs.private_state import NAME as PRIVATE_FILE
from thinwire.transport.certificates import (
    Credentials,
    Revocations,
    load_credentials,
    moment_shown,
    names_in,
    read_certificates,
    read_key,
)
from thinwire.transport.grpc_channel import ask, grpc
from thinwire.transport.grpc_server import Listener
from thinwire.transport.service import RPCS, Roster
from thinwire.types import PartyName

__all__ = ["Check", "Patient", "Verdict", "examined"]

_FEW_DAYS = 30
_CLOCK_SECONDS = 60.0
_MUCH = 0.8  # of what is free
_COPIES_OF_WEIGHTS = 4  # weights, gradients, and two averages of an optimiser
_GENERATIONS = 3  # of checkpoints: two that stay, and one that is being written
_LEAST_DISK = 50_000_000  # logs of what was sent, events, models
_MEMINFO = Path("/proc/meminfo")

_OF_THE_JOB = ("recipe", "approval", "key", "name", "certificate", "revoked list", "row ids", "data", "model")
_OF_THE_MACHINE = ("memory", "run folder", "disk")
_OF_THE_CALL = ("address", "connection", "TLS", "version there", "same job", "clock", "round trip", "bandwidth")
_NEEDED = ("address", "connection", "TLS", "version there")  # by the checks of a call that follow


class Verdict(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    says: str  # in a line
    more: tuple[str, ...] = ()  # the way out, or details
    facts: Mapping[str, Any] = field(default_factory=dict)  # for machines


@dataclass(frozen=True)
class Patient:
    """What is examined: a party of a job, the folder of its run, and how long to wait for the others."""

    job: Path
    name: PartyName
    folder: Path
    wait_seconds: float = 0.0
    settings: Sequence[str] = ()


@dataclass(frozen=True)
class _Held:
    """A party's own tables, read, and its bottom model."""

    data: FeatureParty | LabelData
    rows: int
    test_rows: int
    width: int  # 0 where it has no features
    bottom: nn.Module | None


_Value = TypeVar("_Value")
_Checks: TypeAlias = Generator[Check, None, _Value]  # and what they leave to the ones that follow


def examined(patient: Patient) -> Iterator[Check]:
    """Every check, in order; those that need what another one did not find are not made, and say so."""
    yield _versions()
    own = yield from _job_file(patient)
    if own is None:
        yield from _not_checked((*_OF_THE_JOB, *_OF_THE_MACHINE, "network"), "needs the job file")
        return
    yield from _recipe(own)
    credentials = yield from _certificates(own)
    brought, held = yield from _own_rows(own)
    if own.is_label_party:
        widths = yield from _listening(own, credentials, brought, patient)
        yield _top_model(own, held, widths)
        yield from _room(own, held, widths, patient.folder)
    else:
        yield from _room(own, held, _like_ours(own, held), patient.folder)
        yield from _calling(own, credentials, brought, patient.wait_seconds)


def _ok(name: str, says: str, *more: str, **facts: Any) -> Check:
    return Check(name, Verdict.OK, says, more, facts)


def _warning(name: str, says: str, *more: str, **facts: Any) -> Check:
    return Check(name, Verdict.WARNING, says, more, facts)


def _problem(name: str, says: str, *more: str, **facts: Any) -> Check:
    return Check(name, Verdict.PROBLEM, says, more, facts)


def _not_checked(names: Sequence[str], why: str) -> Iterator[Check]:
    return (Check(name, Verdict.NOT_CHECKED, why) for name in names)


def _met(name: str, trouble: ThinwireError) -> Check:
    return _problem(name, str(trouble), *((trouble.way_out,) if isinstance(trouble, Trouble) else ()))


# The job and this machine ----------------------------------------------------------------------------------------


def _versions() -> Check:
    found = {"python": platform.python_version(), "thinwire": __version__, "torch": torch.__version__}
    found["grpc"] = str(grpc.__version__)
    return _ok("versions", ", ".join(f"{name} {version}" for name, version in found.items()), **found)


def _job_file(patient: Patient) -> _Checks[OwnPart | None]:
    try:
        own = read_own_part(patient.job, patient.name, patient.settings)
    except BadInput as error:
        yield _problem("job file", "cannot be used", str(error))
        return None
    role = "the label party" if own.is_label_party else f"a feature party; the label party is {own.label_party!r}"
    yield _ok("job file", f"{patient.job}: {own.me!r} is {role}", parties=[*own.feature_parties, own.label_party])
    return own


def _recipe(own: OwnPart) -> Iterator[Check]:
    terms = Terms(own)
    sights = (f"{party} sees {'; '.join(seen)}" for party, seen in own.who_sees().items())
    says = f"{own.recipe.name}, digest {terms.digest[:16]}"
    yield _ok("recipe", says, *sights, own.budget(), digest=terms.digest, who_sees=own.who_sees())
    try:
        approved = terms.are_approved()
    except BadInput as error:
        yield _problem("approval", "another recipe was approved", str(error))
        return
    if approved:
        yield _ok("approval", f"{own.me!r} has approved this recipe")
    else:
        way_out = f'give --yes to `thinwire party`, or write approved = "{terms.digest[:16]}" into its section'
        yield _warning("approval", f"nobody has approved this recipe for {own.me!r} yet", way_out)


# Certificates ----------------------------------------------------------------------------------------------------


def _certificates(own: OwnPart) -> _Checks[Credentials | None]:
    files, name = own.certificate_files, own.certificate_names[own.me]
    key, named = _key(files.key), _named(files.certificate, name)
    yield key
    yield named
    if Verdict.PROBLEM in (key.verdict, named.verdict):
        yield from _not_checked(("certificate", "revoked list"), "needs the key, and a certificate of the right name")
        return None
    try:
        credentials = load_credentials(files, name)
    except BadInput as error:
        yield _problem("certificate", "cannot be used", str(error))
        yield from _not_checked(("revoked list",), "needs the certificate")
        return None
    yield _lifetime(credentials, name)
    yield _revoked(own, credentials)
    return credentials


def _key(file: Path) -> Check:
    try:
        read_key(file)
    except BadInput as error:
        return _problem("key", "cannot be used", str(error))
    return _ok("key", f"{file} is readable by its owner alone")


def _named(file: Path, name: str) -> Check:
    try:
        held = names_in(read_certificates(file)[0], file)
    except BadInput as error:
        return _problem("name", "cannot be read", str(error))
    if name in held:
        return _ok("name", f"the certificate is for {name!r}", names=sorted(held))
    shown = ", ".join(sorted(held)) or "nobody"
    return _problem(
        "name",
        f"the certificate is for {shown}, not {name!r}",
        f"give each party the one made for its name, or say certificate_name in its section; it is {file}",
    )


def _lifetime(credentials: Credentials, name: str) -> Check:
    days = (credentials.not_after - datetime.now(UTC)).days
    facts = {"days_left": days, "not_after": credentials.not_after.isoformat()}
    says = f"valid for {days} more days, until {moment_shown(credentials.not_after)}"
    if days >= _FEW_DAYS:
        return _ok("certificate", says, **facts)
    return _warning("certificate", says, f"renew it soon: thinwire certs DIR --renew {name}", **facts)


def _revoked(own: OwnPart, credentials: Credentials) -> Check:
    try:
        listed = Revocations(own.revoked)
        refusal = listed.refusal(credentials.certificate_pem)
    except BadInput as error:
        return _problem("revoked list", "cannot be read", str(error))
    if refusal is not None:
        way_out = f"get a new one: thinwire certs DIR --renew {own.certificate_names[own.me]}"
        return _problem("revoked list", f"our own certificate is on it: {refusal}", way_out)
    count = len(listed.serials())
    return _ok("revoked list", f"{count or 'no'} certificates are revoked, ours is not", revoked=count)


# Rows and models -------------------------------------------------------------------------------------------------


def _own_rows(own: OwnPart) -> _Checks[tuple[Brought, _Held | None]]:
    """Says of itself to the others what could be read: sizes and digests."""
    digests = yield from _row_ids(own)
    held = yield from _data(own)
    brought = Brought(party=own.me, version=__version__, agreement=own.agreement())
    if held is not None:
        sizes = {"rows": held.rows, "test_rows": held.test_rows, "width": held.width}
        brought = brought.model_copy(update={**sizes, **digests})
    return brought, held


def _row_ids(own: OwnPart) -> _Checks[dict[str, str | None]]:
    try:
        ids, tests = own.row_ids(), own.test_row_ids()
    except BadInput as error:
        yield _problem("row ids", "cannot be read", str(error))
        return {}
    found = {"row_ids": None if ids is None else ids.digest, "test_row_ids": None if tests is None else tests.digest}
    if ids is None:
        way_out = f"name them in the section of {own.me!r} as ids = {{ file, column }}; only a digest travels"
        yield _warning("row ids", "not named: whether all hold the same rows in one order stays unchecked", way_out)
    else:
        yield _ok("row ids", f"{ids.count} ids, all different, digest {ids.digest[:12]}", **found)
    return found


def _data(own: OwnPart) -> _Checks[_Held | None]:
    try:
        held = _labels_held(own) if own.is_label_party else _features_held(own)
    except BadInput as error:
        yield _problem("data", "cannot be used", str(error))
        yield from _not_checked(("model",), "needs the data")
        return None
    shapes = {name: list(table.shape) for name, table in _tables(held).items()}
    rows = f"{held.rows} training rows, {held.test_rows or 'no'} test rows"
    says = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
    yield _ok("data", f"{rows} ({says})", rows=held.rows, test_rows=held.test_rows, shapes=shapes)
    if held.bottom is None:
        yield _ok("model", "no bottom model: this party has no features")
    else:
        count = _parameters(held.bottom)
        yield _ok("model", f"{count} parameters, embedding of width {held.width}", parameters=count, width=held.width)
    return held


def _labels_held(own: OwnPart) -> _Held:
    data = own.load_label_data()
    tests = 0 if data.test_labels is None else len(data.test_labels)
    return _Held(data, len(data.labels), tests, data.width or 0, data.bottom)


def _features_held(own: OwnPart) -> _Held:
    party = own.load_features()
    tests = 0 if party.test_features is None else len(party.test_features)
    width = embedding_width(f"party.{own.me}.model:", party.bottom, party.features)
    return _Held(party, len(party.features), tests, width, party.bottom)


def _tables(held: _Held) -> dict[str, Tensor]:
    names = ("features", "test_features", "labels", "test_labels")
    found = {name: getattr(held.data, name, None) for name in names}
    return {name.replace("_", " "): table for name, table in found.items() if isinstance(table, Tensor)}


def _parameters(module: nn.Module) -> int:
    return sum(part.numel() for part in module.parameters())


def _top_model(own: OwnPart, held: _Held | None, widths: Mapping[PartyName, int]) -> Check:
    if held is None or not isinstance(held.data, LabelData):
        return Check("top model", Verdict.NOT_CHECKED, "needs the data")
    unknown = [name for name in own.feature_parties if name not in widths]
    if unknown:
        says = (
            f"needs the embeddings' widths of {', '.join(map(repr, unknown))}: --wait SECONDS while their doctors run"
        )
        return Check("top model", Verdict.NOT_CHECKED, says)
    try:
        party = own.label_party_of(held.data, widths)
    except BadInput as error:
        return _problem("top model", "does not fit the parties' embeddings", str(error))
    count, shown = _parameters(party.top), ", ".join(f"{name} {width}" for name, width in widths.items())
    return _ok("top model", f"{count} parameters, for embeddings of width {shown}", parameters=count)


# Memory and disk -------------------------------------------------------------------------------------------------


def _like_ours(own: OwnPart, held: _Held | None) -> dict[PartyName, int]:
    """The other parties' widths are not known here; they are mostly alike."""
    names = (*own.feature_parties, *((own.label_party,) if own.roster.label_party_has_features else ()))
    return {} if held is None else dict.fromkeys(names, held.width)


def _room(own: OwnPart, held: _Held | None, widths: Mapping[PartyName, int], folder: Path) -> Iterator[Check]:
    if held is None:
        yield from _not_checked(("memory",), "needs the data")
        state = 0
    else:
        known = widths if set(own.feature_parties) <= set(widths) else {}
        state = _state_bytes(own, held, known)
        data = sum(table.nbytes for table in _tables(held).values())
        yield _memory(data, state, "" if known else " (--wait counts the others' embeddings too)")
    yield _run_folder(own, held, folder)
    yield _disk(folder, _GENERATIONS * state + _LEAST_DISK)


def _state_bytes(own: OwnPart, held: _Held, widths: Mapping[PartyName, int]) -> int:
    """Surrogates, workset and models, as the simulator's preview counts them."""
    weights = 0 if held.bottom is None else 4 * _COPIES_OF_WEIGHTS * _parameters(held.bottom)
    if not widths:
        return weights
    rows = Rows(held.rows, held.test_rows or None)
    parties = [absent_feature_party(name, rows, widths[name]) for name in own.feature_parties]
    job = job_of(own.recipe, own.settings, parties, absent_label_party(own.label_party, rows))
    return weights + surrogate_bytes(job, widths)[own.me] + workset_bytes(job, widths)[own.me]


def _memory(data: int, state: int, caveat: str) -> Check:
    free = _free_memory()
    facts = {"data_bytes": data, "state_bytes": state, "free_bytes": free}
    says = f"{_shown(data)} of data, about {_shown(state)} of surrogates, workset and models{caveat}"
    if free is None:
        return _ok("memory", f"{says}; how much is free is not known here", **facts)
    says += f"; {_shown(free)} are free beside the data"
    way_out = "take a machine with more memory, fewer rows, narrower embeddings, or a recipe without surrogates"
    if state > free:
        return _problem("memory", says, way_out, **facts)
    return _warning("memory", says, way_out, **facts) if state > _MUCH * free else _ok("memory", says, **facts)


def _free_memory() -> int | None:
    """Bytes, where the system says it."""
    try:
        lines = _MEMINFO.read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _run_folder(own: OwnPart, held: _Held | None, folder: Path) -> Check:
    if not (folder / PRIVATE_FILE).exists():
        return _ok("run folder", f"{folder} is new: the run begins there")
    try:
        private = PrivateState.open(folder)
        if private.aborted is not None:
            return _problem(
                "run folder", f"the run in {folder} was aborted by {private.aborted!r}", "give another --out"
            )
        if held is not None and (folder / "job.toml").exists():
            require_same_text(folder, own.resolved_text(), own.data_digests(held.data))
    except BadInput as error:
        return _problem("run folder", "holds another run, or cannot be read", str(error))
    if private.finished:
        return _warning("run folder", f"the run in {folder} has finished", "a new run needs another --out")
    return _ok("run folder", f"{folder} holds this run, and it goes on there", starts=private.incarnation)


def _disk(folder: Path, needed: int) -> Check:
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        return _problem("disk", f"{there} cannot be written to", "give another --out, or the right to write there")
    free = shutil.disk_usage(there).free
    facts = {"needed_bytes": needed, "free_bytes": free}
    says = f"about {_shown(needed)} for checkpoints and logs, {_shown(free)} are free"
    way_out = f"free some space on the disk of {there}, or give an --out on another one"
    if needed > free:
        return _problem("disk", says, way_out, **facts)
    return _warning("disk", says, way_out, **facts) if needed > _MUCH * free else _ok("disk", says, **facts)


def _shown(count: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.3g} {units[0]}"


# A feature party calls -------------------------------------------------------------------------------------------


def _calling(own: OwnPart, credentials: Credentials | None, brought: Brought, wait: float) -> Iterator[Check]:
    left, needed = list(_OF_THE_CALL), ""
    for check in _call(own, credentials, brought, wait):
        left.remove(check.name)
        yield check
        needed = check.name
        if check.verdict is Verdict.PROBLEM and needed in _NEEDED:
            break
        if credentials is None:
            needed = "certificate"
    yield from _not_checked(left, f"needs the {needed}")


def _call(own: OwnPart, credentials: Credentials | None, brought: Brought, wait: float) -> Iterator[Check]:
    try:
        way = Way.to(own.network.dial_address(), os.environ)
        found = way.resolve()
    except (BadInput, Trouble) as error:
        yield _met("address", error)
        return
    through = f", through the proxy {way.proxy} of {way.variable}" if way.proxy else ""
    known = "" if found == [way.first.host] else f": {way.first.host} is {', '.join(found[:3])}"
    yield _ok("address", f"{way.address}{through}{known}", addresses=found)
    made = _connected(way, wait)
    if isinstance(made, Trouble):
        yield _met("connection", made)
        return
    with made:
        yield _ok("connection", f"somebody listens at {way.address}")
        if credentials is None:
            return
        yield _hands(own, made, credentials)
    yield from _probed(own, brought)


def _connected(way: Way, wait: float) -> socket.socket | Trouble:
    deadline = monotonic() + wait
    while True:
        try:
            return way.connect()
        except Trouble as trouble:
            if monotonic() >= deadline:
                return trouble
        sleep(0.2)


def _hands(own: OwnPart, made: socket.socket, credentials: Credentials) -> Check:
    expected = own.certificate_names[own.label_party]
    try:
        shake_hands(made, credentials, own.certificate_files, expected)
    except (Trouble, BadInput) as error:
        return _met("TLS", error)
    return _ok("TLS", f"TLS 1.3; the certificate there is for {expected!r}, and ours is accepted")


def _probed(own: OwnPart, brought: Brought) -> Iterator[Check]:
    target = target_of(own)
    try:
        answer = ask(target, RPCS["Probe"], {"brought": brought.model_dump()})
    except (ThinwireError, ValueError) as error:
        yield _problem("version there", "the label party does not answer a probe", printable(error))
        return
    there = printable(answer.get("version"))
    if there != __version__:
        says = f"{own.label_party!r} runs thinwire {there}, this is {__version__}"
        yield _problem("version there", says, "bring all parties to one version")
        return
    yield _ok("version there", f"{own.label_party!r} runs thinwire {there} too", version=there)
    yield _agreed(own, brought, answer)
    try:
        link = measured(target, brought)
    except ThinwireError as error:
        yield _problem("round trip", "could not be measured", printable(error))
        return
    yield from _link(link)


def _agreed(own: OwnPart, brought: Brought, answer: Mapping[str, Any]) -> Check:
    told = answer.get("differences")
    found = [printable(one) for one in told] if isinstance(told, list) else ["it does not say"]
    if found:
        return _problem("same job", f"not as {own.label_party!r} reads it", *found, differences=found)
    compared = "recipe, settings and parties"
    if brought.rows is not None:
        compared += ", row counts"
    if brought.row_ids is not None and answer.get("names_ids") is True:
        compared += ", row ids in order"
    return _ok("same job", f"as {own.label_party!r} reads it: {compared}", differences=[])


def _link(link: Measured) -> Iterator[Check]:
    ahead = link.clock_seconds
    says = f"{abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} the label party's"
    if abs(ahead) < 1:
        says = "within a second of the label party's"
    if abs(ahead) > _CLOCK_SECONDS:
        way_out = "set both clocks by the network (NTP): certificates and logs go by them"
        yield _warning("clock", says, way_out, clock_seconds=ahead)
    else:
        yield _ok("clock", says, clock_seconds=ahead)
    yield _ok("round trip", f"{link.round_trip_ms:.3g} ms, the median of ten", round_trip_ms=link.round_trip_ms)
    facts = {"up_mbit": link.up.mbit, "down_mbit": link.down.mbit}
    facts |= {"up_is_bound": link.up.is_bound, "down_is_bound": link.down.is_bound}
    yield _ok("bandwidth", f"{_rate(link.up)} up, {_rate(link.down)} down", **facts)


def _rate(rate: Rate) -> str:
    shown = f"{rate.mbit:.3g} Mbit/s" if rate.mbit < 1000 else f"{rate.mbit / 1000:.3g} Gbit/s"
    return f"at least {shown}" if rate.is_bound else shown


# The label party listens -----------------------------------------------------------------------------------------


def _listening(
    own: OwnPart, credentials: Credentials | None, brought: Brought, patient: Patient
) -> _Checks[dict[PartyName, int]]:
    """Gives the embeddings' widths of the parties that were met, and its own."""
    ours = {own.me: brought.width} if brought.width else {}
    try:
        address = own.network.listen_address()
    except BadInput as error:
        yield _problem("listen", "the job file does not say where", str(error))
        return ours
    bound = _bound(own, credentials, address)
    yield bound
    if patient.wait_seconds <= 0:
        return ours
    why = "needs an address to listen at, and the certificate"
    if bound.verdict is Verdict.OK and credentials is not None:
        if not (patient.folder / "events.jsonl").exists():
            return (yield from _receive(own, brought, patient.wait_seconds)) | ours
        why = f"a run has begun in {patient.folder}, and its parties would be turned away by a doctor"
    yield from _not_checked([f"party {name}" for name in own.feature_parties], why)
    return ours


def _bound(own: OwnPart, credentials: Credentials | None, address: str) -> Check:
    place = Endpoint.parse(address)
    try:
        kind, *_, where = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and credentials is not None:
            return _in_use(own, address)
        way_out = (
            "network.listen must be an address of this machine, 0.0.0.0 for all, and a port that is free to take"
        )
        return _problem("listen", f"cannot listen at {address} ({error.strerror})", way_out)
    return _ok("listen", f"{address} is free; the other parties call {_called(own)}")


def _called(own: OwnPart) -> str:
    try:
        return own.network.dial_address()
    except BadInput:
        return "what their own job files give as network.address"


def _in_use(own: OwnPart, address: str) -> Check:
    """By this party's own run, which is as it should be, or by anything else."""
    try:
        state = ask(target_of(own), RPCS["Status"], {}, seconds=3.0).get("state")
    except ThinwireError:
        way_out = "stop what listens there, or change the port in network.listen and in the others' network.address"
        return _problem("listen", f"{address} is in use by another process", way_out)
    what = "a doctor" if state == "doctor" else "a run"
    return _warning("listen", f"{what} of {own.me!r} listens at {address} already", "`thinwire status` tells more")


def _receive(own: OwnPart, brought: Brought, seconds: float) -> _Checks[dict[PartyName, int]]:
    """Answers the other parties' doctors, until all have measured and agree, or the time is over."""
    reception = Reception(brought)
    roster = Roster(own.label_party, own.certificate_names, Revocations(own.revoked))
    try:
        listener = Listener(
            own.network.listen_address(),
            target_of(own).credentials,
            roster,
            reception,
            reception.heard,
            len(own.feature_parties),
        )
    except BadInput as error:
        yield _problem("doctors", "cannot be answered", str(error))
        return {}
    listener.start()
    try:
        yield _ok("doctors", f"answering the others' `thinwire doctor` for up to {seconds:g} s; Ctrl-C ends it")
        deadline = monotonic() + seconds
        while monotonic() < deadline and not _all_well(own, reception, brought):
            sleep(0.05)
    except KeyboardInterrupt:
        pass  # enough was seen
    finally:
        listener.stop()
    seen = reception.seen()
    for name in own.feature_parties:
        yield _guest(name, seen.get(name), brought)
    for why in reception.refusals():
        yield _warning("refused", why)
    return {name: one.width for name in own.feature_parties if (one := seen.get(name)) is not None and one.width}


def _all_well(own: OwnPart, reception: Reception, brought: Brought) -> bool:
    done = reception.done()
    return set(done) == set(own.feature_parties) and not any(one.differences_to(brought) for one in done.values())


def _guest(name: PartyName, seen: Brought | None, brought: Brought) -> Check:
    check = f"party {name}"
    if seen is None:
        return _warning(check, "not seen", f"let it run: thinwire doctor JOB.toml --name {name}")
    found = seen.differences_to(brought)
    if seen.version != brought.version:
        found.append(f"it runs thinwire {printable(seen.version)}, this is {brought.version}")
    if found:
        return _problem(check, "seen, but its job is not ours", *found)
    return _ok(check, f"seen; it reads the job as we do, embedding of width {seen.width or 'unknown'}")
