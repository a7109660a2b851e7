"""A small job with its data and certificates, and its parties: as threads of this process, or as real processes.

In threads, parties share torch's generator, which programs seed before each forward: models there must not
draw random numbers. Everything between the parties is real either way: gRPC, mutual TLS, folders, checkpoints.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

import thinwire as tw
from processes import DEADLINE, THINWIRE, Process, Processes
from thinwire.job.init_from import InitFrom
from thinwire.job.job_file import toml_text
from thinwire.job.job_loader import load_job
from thinwire.job.party_view import read_party_view
from thinwire.net.pki.authority import issue
from thinwire.net.pki.certificates import CertificateFiles, Credentials, load_credentials
from thinwire.training.party.life_cycle import PartyOutcome
from thinwire.training.party.party_run import Audience, PartyRun
from thinwire.training.party.startup import open_party_run
from thinwire.training.result import Result

LABEL_PARTY = "clinic"
FEATURE_PARTIES = ("bank", "shop", "post")
ROWS, TESTS, COLUMNS = 48, 16, 4

Document = dict[str, Any]


# The job ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What differs between the tests' jobs; the rest is the same everywhere."""

    recipe: Mapping[str, Any]
    job: Mapping[str, Any] = field(default_factory=dict)
    label_party: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=lambda: {"name": "mlp", "hidden": [6], "width": 4})
    parties: int = 2
    own_features: bool = False  # at the label party
    tests: bool = True  # are there test rows?
    ids: bool = False
    optimizer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A folder with a job, its data and its certificates."""

    folder: Path
    port: int
    document: Document

    @property
    def job(self) -> Path:
        return self.folder / "job.toml"

    @property
    def certs(self) -> Path:
        return self.folder / "certs"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def feature_parties(self) -> tuple[str, ...]:
        return tuple(party["name"] for party in self.document["party"])

    @property
    def names(self) -> tuple[str, ...]:
        """The label party first: it must listen before the others dial, or they dial twice."""
        return (LABEL_PARTY, *self.feature_parties)

    def out(self, name: str) -> Path:
        return self.folder / "runs" / name

    def write(self, file: str, changes: Callable[[Document], None] | None = None) -> Path:
        """The job with changes, as another file beside it."""
        document = json.loads(json.dumps(self.document))
        if changes is not None:
            changes(document)
        path = self.folder / file
        path.write_text(toml_text(document))
        return path

    def credentials(self, name: str) -> Credentials:
        return load_credentials(CertificateFiles.in_folder(self.certs, name), name)


def made(folder: Path, shape: Shape) -> Place:
    """Writes job, data and certificates."""
    folder.mkdir(parents=True, exist_ok=True)
    place = Place(folder, free_port(), {})
    place.document.update(_document(shape, place.address))
    write_data(folder, regression=shape.label_party.get("loss") == "squared_error")
    issue(place.certs, place.names)
    place.write("job.toml")
    return place


def write_data(folder: Path, regression: bool = False) -> None:
    """One file a party, always the same; labels follow from everybody's columns."""
    rng = np.random.default_rng(20)
    tables = {name: rng.normal(size=(ROWS + TESTS, COLUMNS)) for name in (*FEATURE_PARTIES, LABEL_PARTY)}
    score = np.sum([table[:, 0] for table in tables.values()], axis=0)
    labels = score.astype(np.float32) if regression else (score > 0).astype(np.int64)
    ids = np.array([f"person-{number:05d}" for number in rng.permutation(ROWS + TESTS)])
    for name, table in tables.items():
        held = {"x": table[:ROWS], "x_test": table[ROWS:], "id": ids[:ROWS], "id_test": ids[ROWS:]}
        if name == LABEL_PARTY:
            held |= {"y": labels[:ROWS], "y_test": labels[ROWS:]}
        np.savez(folder / f"{name}.npz", **held)  # type: ignore[arg-type]


_SETTINGS = {"epochs": 2, "batch_size": 16, "eval_every": 2, "seed": 3}


def _document(shape: Shape, address: str) -> Document:
    label: Document = {
        "name": LABEL_PARTY,
        "labels": {"file": f"{LABEL_PARTY}.npz", "key": "y"},
        "test_labels": {"file": f"{LABEL_PARTY}.npz", "key": "y_test"},
        "top": {"name": "mlp_top", "hidden": [5], "classes": 2},
        **shape.label_party,
    }
    if shape.own_features:
        label |= _columns(LABEL_PARTY, shape)
    if shape.ids:
        label |= _ids(LABEL_PARTY)
    if not shape.tests:
        del label["test_labels"]
    return {
        "job": {key: value for key, value in {**_SETTINGS, **shape.job}.items() if value is not None},
        "recipe": dict(shape.recipe),
        "optimizer": {"name": "adam", "lr": 0.02, **shape.optimizer},
        "network": {"listen": address, "address": address, "wait_seconds": DEADLINE},
        "party": [
            {"name": name, **_columns(name, shape), **(_ids(name) if shape.ids else {})}
            for name in FEATURE_PARTIES[: shape.parties]
        ],
        "label_party": label,
    }


def _columns(name: str, shape: Shape) -> Document:
    tests = {"test_features": {"file": f"{name}.npz", "key": "x_test"}} if shape.tests else {}
    return {"features": {"file": f"{name}.npz", "key": "x"}, **tests, "model": dict(shape.model)}


def _ids(name: str) -> Document:
    return {"ids": {"file": f"{name}.npz", "key": "id"}, "test_ids": {"file": f"{name}.npz", "key": "id_test"}}


def free_port() -> int:
    """Below the ports that outgoing connections take by themselves."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def simulated(job: Path) -> Result:
    return tw.train(load_job(job), callbacks=[])


# Parties as threads -----------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What a party said; `at_round` may do something at a round, in the party's own thread."""

    at_round: Callable[[int], None] = lambda _: None
    sentences: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def audience(self) -> Audience:
        return Audience(self.sentences.append, self.events.append, self.at_round)


class PartyThread:
    """One party's run in a thread of its own; the run is open once this is made."""

    def __init__(
        self,
        job: Path,
        name: str,
        out: Path,
        seen: Seen | None = None,
        settings: Sequence[str] = (),
        beginning: InitFrom | None = None,
    ) -> None:
        self.name = name
        self.seen = seen or Seen()
        self.outcome: PartyOutcome | None = None
        self.error: BaseException | None = None
        self.run: PartyRun = open_party_run(
            read_party_view(job, name, settings), out, self.seen.audience(), beginning
        )
        self._thread = Thread(target=self._execute, name=f"party {name}")

    def start(self) -> None:
        self._thread.start()

    def _execute(self) -> None:
        try:
            self.outcome = self.run.execute()
        except BaseException as error:  # noqa: BLE001  shown where the thread is joined
            self.error = error

    def join(self, seconds: float = DEADLINE) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.name} still runs after {seconds:.0f} s: {self.seen.sentences}")

    def over(self) -> None:
        """Ends it where it still runs, and leaves its folder to another."""
        if self._thread.is_alive():
            self.run.session.stopping._since = 1e-9  # asked long ago: it need not end its round
            self._thread.join(DEADLINE)
        self.run.session._lock.release()

    def summary(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome.summary


@contextmanager
def threads(
    place: Place,
    seen: Mapping[str, Seen] | None = None,
    jobs: Mapping[str, Path] | None = None,
    settings: Sequence[str] = (),
    beginnings: Mapping[str, InitFrom] | None = None,
) -> Iterator[dict[str, PartyThread]]:
    """All parties, started; whatever still runs in the end is ended."""
    parties: dict[str, PartyThread] = {}
    try:
        for name in place.names:
            job = (jobs or {}).get(name, place.job)
            beginning = (beginnings or {}).get(name)
            parties[name] = PartyThread(job, name, place.out(name), (seen or {}).get(name), settings, beginning)
        for party in parties.values():
            party.start()
        yield parties
    finally:
        for party in parties.values():
            party.over()


def finished(parties: Mapping[str, PartyThread]) -> dict[str, dict[str, Any]]:
    """Everybody's summary. One that failed ends the others, and is raised."""
    deadline = monotonic() + DEADLINE
    while any(party.outcome is None and party.error is None for party in parties.values()):
        if any(party.error is not None for party in parties.values()):
            for party in parties.values():
                party.run.session.stopping.ask()
        if monotonic() > deadline:
            raise TimeoutError({name: party.seen.sentences for name, party in parties.items()})
        sleep(0.01)
    for party in parties.values():
        party.join()
    return {name: party.summary() for name, party in parties.items()}


def ran(place: Place, **given: Any) -> dict[str, dict[str, Any]]:
    """All parties as threads, to the end."""
    with threads(place, **given) as parties:
        return finished(parties)


# Parties as processes ---------------------------------------------------------------------------------------------


class PartyProcesses(Processes):
    def party(
        self,
        place: Place,
        name: str,
        *options: str | Path,
        out: Path | None = None,
        prefix: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
        faults: Sequence[Mapping[str, Any]] = (),
    ) -> Process:
        folder = out or place.out(name)
        command = [
            *prefix,
            THINWIRE,
            "party",
            place.job,
            "--name",
            name,
            "--out",
            folder,
            "--yes",
            "--json",
            *options,
        ]
        return self.command(command, place.folder, more, faults)


# What they leave --------------------------------------------------------------------------------------------------


def left_models(place: Place) -> dict[str, dict[str, Tensor]]:
    """Every party's models as it wrote them."""
    files = [file for name in place.names for file in sorted((place.out(name) / "models").glob("*.safetensors"))]
    return {file.stem: load_file(file) for file in files}


def left_ledger(place: Place, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((place.out(name) / "ledger.json").read_text())
    return found


def left_events(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.out(LABEL_PARTY) / "events.jsonl").read_text().splitlines()]


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def contents(folder: Path, without: Sequence[str] = ("log.jsonl", "lock", "lock.guard")) -> dict[str, bytes]:
    """All that a party keeps; its log of events may tell of a refusal."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name not in without)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
