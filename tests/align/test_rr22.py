"""The engine beside ours: its process and its relay, with a package in the place of spu that compares plain ids."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from align.talking import LABEL, SMALL, Wire, aligned, changed_body, common_ids
from thinwire.align import WorkersFailed, Workspace
from thinwire.align.rr22 import Rr22Backend, find_rr22
from thinwire.base.errors import BadInput, Malformed
from thinwire.base.types import Kind

IDS: dict[str, list[Any]] = {
    "bank": [f'id "{number}", é' for number in range(60)],
    "mill": [f'id "{number}", é' for number in range(10, 70)],
    LABEL: [f'id "{number}", é' for number in range(5, 50)],
}

LIBSPU = """
import socket, time
class Desc:
    def __init__(self):
        self.ports = []
    def add_party(self, name, address):
        self.ports.append(int(address.rpartition(":")[2]))
class Context:
    def __init__(self, ports, rank):
        self.rank, self.ports = rank, ports
        self.listener = socket.create_server(("127.0.0.1", ports[rank]))
        self.out = socket.create_connection(("127.0.0.1", ports[1 - rank]))
        self.incoming, _ = self.listener.accept()
    def exchange(self, data):
        self.out.sendall(len(data).to_bytes(8, "big") + data)
        stream = self.incoming.makefile("rb")
        return stream.read(int.from_bytes(stream.read(8), "big"))
    def stop_link(self):
        self.exchange(b"end")
class link:
    Desc = Desc
    @staticmethod
    def create_brpc(desc, rank):
        return Context(desc.ports, rank)
"""

LIBPSI = """
from types import SimpleNamespace
PsiProtocol = SimpleNamespace(PROTOCOL_RR22=3)
PsiProtocolConfig = InputParams = OutputParams = PsiExecuteConfig = SimpleNamespace
def psi_execute(config, context):
    assert config.protocol_conf.receiver_rank == 0 and not config.protocol_conf.broadcast_result
    lines = open(config.input_params.path, "rb").read().split()[1:]
    BREAK
    theirs = set(context.exchange(b" ".join(lines) + b" " * 3_000_000).split())
    if context.rank == 0:
        with open(config.output_params.path, "wb") as file:
            file.write(b'"id"\\n' + b"".join(line + b"\\n" for line in lines if line in theirs))
"""


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Rr22Backend]:
    """An interpreter that finds a package called spu."""

    def make(name: str = "python", breaks: str = "pass") -> Rr22Backend:
        site = tmp_path / f"{name}-site"
        (site / "spu").mkdir(parents=True)
        (site / "spu-9.8.7.dist-info").mkdir()
        (site / "spu-9.8.7.dist-info" / "METADATA").write_text("Name: spu\nVersion: 9.8.7\n")
        (site / "spu" / "__init__.py").write_text("raise SystemExit('it would load jax')\n")
        (site / "spu" / "libspu.py").write_text(LIBSPU)
        (site / "spu" / "libpsi.py").write_text(LIBPSI.replace("BREAK", breaks))
        python = tmp_path / name
        python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        return find_rr22(str(python))

    return make


def rooms(
    folder: Path, engines: dict[str, Rr22Backend | None], notes: list[str] | None = None
) -> dict[str, Workspace]:
    say = (notes if notes is not None else []).append
    return {
        party: Workspace(folder / party, bucket_ids=32, in_memory_ids=8, engine=engine, say=say)
        for party, engine in engines.items()
    }


def test_it_finds_the_same_rows_through_the_relay(tmp_path: Path, engine: Callable[..., Rr22Backend]) -> None:
    fast, wire = engine(), Wire()
    assert fast.name == "RR22 of spu 9.8.7, expand-accumulate code of weight 7"
    ids = {party: IDS[party] for party in ("bank", LABEL)}
    found = aligned(ids, backend=SMALL, wire=wire, workspaces=rooms(tmp_path, dict.fromkeys(ids, fast)))
    texts = common_ids(ids, found)
    assert texts["bank"] == texts[LABEL]
    assert set(texts[LABEL]) == set(ids["bank"]) & set(ids[LABEL])
    assert found["bank"].digest == found[LABEL].digest
    assert not wire.bodies(Kind.MATCH_TAGS)
    assert sum(map(len, wire.bodies(Kind.BLINDED_IDS, "bank"))) > 2 * 3_000_000  # in pieces, of both buckets
    assert max(map(len, wire.bodies(Kind.BLINDED_IDS))) < 5_000_000


def test_all_match_by_the_default_where_one_party_lacks_it(
    tmp_path: Path, engine: Callable[..., Rr22Backend]
) -> None:
    notes: list[str] = []
    wire, fast = Wire(), engine()
    found = aligned(IDS, wire=wire, workspaces=rooms(tmp_path, {"bank": None, "mill": fast, LABEL: fast}, notes))
    assert {len(one) for one in found.values()} == {40}
    assert wire.bodies(Kind.MATCH_TAGS)
    assert notes[0] == f"bank cannot match by {fast.name}: all match by the default"


def test_a_process_that_fails_is_named_and_the_other_ends_too(
    tmp_path: Path, engine: Callable[..., Rr22Backend]
) -> None:
    ids = {party: IDS[party] for party in ("bank", LABEL)}
    broken = engine("broken", "raise ValueError('Error: no room')")
    with pytest.raises(WorkersFailed, match="RR22 ended with code 1: ValueError: Error: no room"):
        aligned(ids, workspaces=rooms(tmp_path, {"bank": broken, LABEL: engine()}))


def test_an_interpreter_without_it_is_refused_with_the_way_to_get_it(tmp_path: Path) -> None:
    for python, why in ((sys.executable, "this Python has no spu"), (str(tmp_path / "none"), "No such file")):
        with pytest.raises(BadInput, match=rf"RR22 is not available: .*{why}.*to install it: python3.11 -m venv"):
            find_rr22(python)


@pytest.mark.parametrize(
    ("number", "change", "what"),
    [
        (0, lambda _: b"", "a message of RR22 without its state"),
        (0, lambda _: b"\x03", "a message of RR22 without its state"),
        (1, lambda _: b"\0cut", "a record of RR22 that is cut off"),
        (1, lambda _: b"\0\1\0\0\0\3\0\0\0\0", "an invalid record of RR22"),
        (1, lambda _: b"\0\1\0\0\0\1\xff\0\0\0", "an invalid record of RR22"),
        (1, lambda _: b"\0\1\0\0\0\0\1\0\0\0x", "an invalid record of RR22"),
    ],
)
def test_messages_that_cannot_be_are_refused(
    tmp_path: Path, engine: Callable[..., Rr22Backend], number: int, change: Any, what: str
) -> None:
    ids = {party: IDS[party] for party in ("bank", LABEL)}
    changes = {"bank": changed_body(Kind.BLINDED_IDS, change, number)}
    with pytest.raises(Malformed, match=f"'bank' sent {what}"):
        aligned(ids, changes=changes, workspaces=rooms(tmp_path, dict.fromkeys(ids, engine())))


def test_an_engine_that_was_not_offered_is_refused(tmp_path: Path, engine: Callable[..., Rr22Backend]) -> None:
    ids, fast = {party: IDS[party] for party in ("bank", LABEL)}, engine()
    plan = changed_body(Kind.ALIGNMENT, lambda body: body.replace(b"9.8.7", b"6.6.6"), 1)
    with pytest.raises(
        Malformed, match=r"'shop' sent a plan to match by 'RR22 of spu 6.6.6.* which this party has not"
    ):
        aligned(ids, changes={LABEL: plan}, workspaces=rooms(tmp_path, dict.fromkeys(ids, fast)))
