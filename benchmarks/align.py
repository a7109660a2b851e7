"""What an alignment costs: two parties, each a process of its own, over TCP on this machine.

    python benchmarks/align.py [--ids 100000] [--workers 1] [--repeats 1] [--json] [--openmined-python PATH]
                               [--bucket-ids 524288] [--folder FOLDER] [--spu-python PATH]

Both parties have so many ids, half of them in common. Wall and CPU seconds run from two lists of text to both
parties' rows; CPU seconds and peak memory are the two processes' together. With --openmined-python the same lists
go through openmined-psi in the same run, also as two processes over TCP, with its setup and its request computed at
the same time; only its client learns the intersection. It pins protobuf, so it needs an environment of its own:

    python -m venv openmined && openmined/bin/pip install openmined-psi
    python benchmarks/align.py --openmined-python openmined/bin/python

With --bucket-ids, sets of more ids than that go into buckets of at most so many on disk, in the folder; a run that
was stopped goes on there with the same command. With --spu-python the same ids go through RR22 too, in such buckets:

    python3.11 -m venv spu && spu/bin/pip install --no-deps spu
    python benchmarks/align.py --ids 1000000 --spu-python spu/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from tempfile import mkdtemp
from threading import Thread
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

from benchmarks.results import Row, compare, measure_in_turns
from thinwire.align import Workspace
from thinwire.align.bucket_files import BUCKET_IDS, IN_MEMORY_IDS
from thinwire.base.errors import ThinwireError
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Message
from thinwire.engine.wire.frame import HEADER_SIZE, Frame, body_length, open_frame, pack_frame

_NAMES = ("bank", "shop")  # the feature party, the label party
_IDS, _REPEATS = 10_000, 3
_PIECE = 1 << 18  # ids that are made at a time
_HOW_TO_GET_IT = "python -m venv openmined && openmined/bin/pip install openmined-psi"


def rows(openmined_python: str = "") -> list[Row]:
    """CPU seconds and bytes; without an interpreter that has openmined-psi, how to get one."""
    help = f"aligning {_IDS} x {_IDS} ids, half in common: both parties' "
    missing = _missing(openmined_python)
    if missing:
        return [Row("CPU", f"{help}CPU", "openmined-psi", "s", note=missing)]
    runs: dict[str, list[Cost]] = {"ours": [], "other": []}

    def cpu(who: str, command: Sequence[str]) -> float:
        runs[who].append(cost_of(command, _IDS, 1))
        return runs[who][-1].cpu_seconds

    seconds = measure_in_turns(
        lambda: cpu("ours", our_command()), lambda: cpu("other", openmined_command(openmined_python)), _REPEATS
    )
    ours, other = runs["ours"][-1].bytes, runs["other"][-1].bytes
    return [
        seconds.row("CPU", f"{help}CPU", "openmined-psi", "s"),
        compare(ours, other).row("bytes", f"{help}bytes", "openmined-psi", "bytes"),
    ]


def _missing(python: str) -> str:
    """Why there is nothing to measure against; empty where there is."""
    if not python:
        return f"give --openmined-python PATH; to get it: {_HOW_TO_GET_IT}"
    asked = [python, "-c", "import private_set_intersection.python"]
    try:
        there = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    except OSError as error:
        return f"{python} cannot be run: {error.strerror}"
    return "" if there else f"{python} cannot import openmined-psi; to get it: {_HOW_TO_GET_IT}"


def our_command(bucket_ids: int = 0, folder: str = "", spu_python: str = "") -> list[str]:
    """Buckets of so many ids (0: the default) in a folder ("": a temporary one), by RR22 where that is given."""
    return [sys.executable, __file__, "--party", str(bucket_ids), folder, spu_python]


def openmined_command(python: str) -> list[str]:
    return [python, "-c", _OPENMINED]


@dataclass(frozen=True)
class Cost:
    """Of both parties together; `wall_seconds` of the slower one."""

    wall_seconds: float
    cpu_seconds: float
    bytes: int
    peak_mb: float
    common: int
    party_peak_mb: float = 0.0  # of the larger party
    others_cpu_seconds: float = (
        0.0  # what the rest of the machine used meanwhile: beside much of it a run says little
    )


# One party of ours --------------------------------------------------------------------------------------------------


class SocketChannel:
    """A `Channel` to one peer; a thread reads, so that two parties that send at once do not stop each other."""

    def __init__(self, me: int, connection: socket.socket) -> None:
        self.sent = 0  # bytes
        self._me = me
        self._connection = connection
        self._inbox: SimpleQueue[Frame] = SimpleQueue()
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self._connection.makefile("rb") as stream:
            while len(header := stream.read(HEADER_SIZE)) == HEADER_SIZE:
                self._inbox.put(open_frame(header, stream.read(body_length(header))))

    def send(self, message: Message) -> None:
        frame = Frame(0, self._me, 1 - self._me, message.kind, message.round, 0, message.body)
        data = pack_frame(frame)
        self.sent += len(data)
        self._connection.sendall(data)

    def receive(self, sender: PartyName, kind: Kind, round: Round) -> Message:
        frame = self._inbox.get()
        if (frame.kind, frame.round) != (kind, round):
            raise ThinwireError(f"{frame.kind.name} {frame.round} came, {kind.name} {round} was next")
        return Message(sender, _NAMES[self._me], kind, round, frame.body)

    def ready(self, sender: PartyName, kind: Kind, round: Round) -> bool:
        return not self._inbox.empty()

    def away(self, awaited: Sequence[tuple[PartyName, Kind, Round]]) -> bool:
        return False

    def pause_clock(self) -> AbstractContextManager[None]:
        return nullcontext()

    def count_steps(self, steps: int) -> None:
        """Real time passes anyway."""


def _party(room: Sequence[str], me: int, port: int, ids: int, workers: int) -> None:
    """Aligns, and prints what it cost."""
    from thinwire.align import Conversation, align_feature_party, align_label_party, ristretto, store_ids
    from thinwire.align.bucket_files import open_workspace

    role = align_label_party if me else align_feature_party
    with (
        open_workspace(_workspace(me, room, workers)) as workspace,
        _connected(me, port) as connection,
        ristretto(workers) as backend,
    ):
        channel = SocketChannel(me, connection)
        began, worked = perf_counter(), _cpu_seconds()
        mine = store_ids(_list_ids(me, ids), workspace.folder, workspace.in_memory_ids)
        talk = Conversation(_NAMES[me], _NAMES[1], _NAMES[:1], channel)
        alignment = role(mine, talk, backend, workspace=workspace)
        seconds, cpu_seconds = perf_counter() - began, _cpu_seconds() - worked
        workspace.clear()
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cost = Cost(seconds, cpu_seconds, channel.sent, sum(peaks), len(alignment))
    print(json.dumps(asdict(cost)))


def _workspace(me: int, room: Sequence[str], workers: int) -> Workspace | None:
    from thinwire.align.rr22 import find_rr22

    bucket_ids, folder, spu_python = room
    if not int(bucket_ids) and not folder and not spu_python:
        return None
    size = int(bucket_ids) or BUCKET_IDS
    engine = replace(find_rr22(spu_python), cores=workers) if spu_python else None
    path = Path(folder) if folder else Path(mkdtemp(prefix="thinwire-bench-"))
    in_memory = size if int(bucket_ids) or spu_python else IN_MEMORY_IDS
    return Workspace(path / _NAMES[me], size, in_memory, engine, say=lambda note: print(note, file=sys.stderr))


def _list_ids(me: int, ids: int) -> Iterator[list[str]]:
    first = 0 if me else ids // 2
    for start in range(first, first + ids, _PIECE):
        yield [f"customer-{number:09d}" for number in range(start, min(start + _PIECE, first + ids))]


def _cpu_seconds() -> float:
    """Of this process and of those it has started."""
    return sum(os.times()[:4])


def _connected(me: int, port: int) -> socket.socket:
    if me:
        return socket.create_connection(("127.0.0.1", port))
    with socket.socket(fileno=os.dup(port)) as listening:  # the feature party inherits it, open
        return listening.accept()[0]


# The same by openmined-psi, in its own environment ------------------------------------------------------------------

_OPENMINED = """
import json, os, resource, socket, sys, time
import private_set_intersection.python as psi

me, port, ids = map(int, sys.argv[1:4])
first = 0 if me else ids // 2
texts = [f"customer-{number:09d}" for number in range(first, first + ids)]
if me:
    connection = socket.create_connection(("127.0.0.1", port))
else:
    connection = socket.socket(fileno=os.dup(port)).accept()[0]
stream = connection.makefile("rwb")
sent = 0

def send(message):
    global sent
    data = message.SerializeToString()
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()
    sent += 8 + len(data)

def receive(kind):
    message = kind()
    message.ParseFromString(stream.read(int.from_bytes(stream.read(8), "big")))
    return message

began, worked, common = time.perf_counter(), time.process_time(), 0
if me:
    client = psi.client.CreateWithNewKey(True)
    send(client.CreateRequest(texts))
    setup, response = receive(psi.ServerSetup), receive(psi.Response)
    common = len(client.GetIntersection(setup, response))
else:
    server = psi.server.CreateWithNewKey(True)
    setup = server.CreateSetupMessage(1e-9, ids, texts, psi.DataStructure.GCS)
    request = receive(psi.Request)  # before anything is sent: two that write at once would wait for each other
    send(setup)
    send(server.ProcessRequest(request))
seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"wall_seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": sent, "peak_mb": peak_mb,
                  "common": common}))
"""


# Both ---------------------------------------------------------------------------------------------------------------


def cost_of(command: Sequence[str], ids: int, workers: int) -> Cost:
    """Runs both parties; `command` gets the party's place, the port (or the listening socket), ids and workers."""
    others = _others_cpu_seconds()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        started = [
            subprocess.Popen(
                [*command, str(me), str(port if me else listening.fileno()), str(ids), str(workers)],
                stdout=subprocess.PIPE,
                pass_fds=() if me else (listening.fileno(),),
            )
            for me in (0, 1)
        ]
        shown = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise ThinwireError("a party failed; its message stands above")
    bank, shop = (Cost(**json.loads(text)) for text in shown)
    return Cost(
        wall_seconds=max(bank.wall_seconds, shop.wall_seconds),
        cpu_seconds=bank.cpu_seconds + shop.cpu_seconds,
        bytes=bank.bytes + shop.bytes,
        peak_mb=bank.peak_mb + shop.peak_mb,
        common=shop.common,
        party_peak_mb=max(bank.peak_mb, shop.peak_mb),
        others_cpu_seconds=_others_cpu_seconds() - others,
    )


def _others_cpu_seconds() -> float:
    """That all processes but those of this benchmark have used since the machine started (Linux)."""
    with open("/proc/stat") as file:
        user, nice, system = map(int, file.readline().split()[1:4])
    ours = os.times()
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - sum(ours[:4])


def _format(name: str, cost: Cost, ids: int) -> str:
    return (
        f"{name:14} {cost.wall_seconds:8.1f} s wall {cost.cpu_seconds:8.1f} s CPU {cost.bytes / 2**20:8.1f} MiB "
        f"{cost.bytes / ids:6.1f} bytes an id {cost.peak_mb:7.0f} MB peak ({cost.party_peak_mb:.0f} a party) "
        f"{cost.common:9} in common {cost.others_cpu_seconds:7.1f} s CPU by others"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1, help="of each party")
    parser.add_argument("--openmined-python", help="a Python that has openmined-psi")
    parser.add_argument("--bucket-ids", type=int, default=0, help="put larger sets into buckets of at most so many")
    parser.add_argument("--folder", default="", help="where buckets are kept; a stopped run goes on there")
    parser.add_argument("--spu-python", default="", help="a Python that has spu: the same ids by RR22 too")
    parser.add_argument("--only", choices=["thinwire", "RR22", "openmined-psi"], help="one of them alone")
    parser.add_argument("--repeats", type=int, default=1, help="of both in turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    commands = {"thinwire": our_command(options.bucket_ids, options.folder)}
    if options.spu_python:
        commands["RR22"] = our_command(options.bucket_ids, options.folder, options.spu_python)
    if options.openmined_python:
        commands["openmined-psi"] = openmined_command(options.openmined_python)
    commands = {name: command for name, command in commands.items() if options.only in (None, name)}
    load = os.getloadavg()[0]
    runs = [
        {name: cost_of(command, options.ids, options.workers) for name, command in commands.items()}
        for _ in range(options.repeats)
    ]
    ratios = {
        field: median(getattr(run["openmined-psi"], field) / getattr(run["thinwire"], field) for run in runs)
        for field in ("wall_seconds", "cpu_seconds", "bytes")
        if {"thinwire", "openmined-psi"} <= commands.keys()
    }
    if options.json:
        shown = [{name: asdict(cost) for name, cost in run.items()} for run in runs]
        print(json.dumps({"ids": options.ids, "load_before": load, "runs": shown, "openmined_over_thinwire": ratios}))
        return
    print(f"{options.ids} x {options.ids} ids, half in common; load before: {load:.1f} on {os.cpu_count()} cores")
    for run in runs:
        for name, cost in run.items():
            print(_format(name, cost, options.ids))
    if ratios:
        shares = ", ".join(f"{ratio:.2f} ({field})" for field, ratio in ratios.items())
        print(f"openmined-psi over thinwire, median of ratios: {shares}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--party"]:
        _party(sys.argv[2:5], *map(int, sys.argv[5:9]))
    else:
        main()
