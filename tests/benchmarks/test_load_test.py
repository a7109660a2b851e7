"""`python benchmarks/load_test.py` against a server, and against what is none."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from benchmarks import load_test as script
from benchmarks.load_test import Load, load_test
from predict.halves import trained
from predict.online.servers import served
from processes import environment
from thinwire.base.errors import BadInput
from training.party.parties import Shape, made


def test_a_load_test_counts_what_it_gets(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}))
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        result = load_test(Load(found.server.address, clients=4, seconds=0.3, rows=2))
        assert result.latencies
        assert not result.errors
        assert result.models == {found.client.get("/v1/model").body["model"]}
        words = [found.server.address, "--clients", "2", "--seconds", "0.3", "--json"]
        command = [sys.executable, script.__file__, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment())
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["requests"] > 0
        found.features["bank"].end()
        lost = load_test(Load(found.server.address, clients=2, seconds=0.3))
        assert set(lost.errors) == {"party_missing"}
    with pytest.raises(BadInput, match="cannot be reached"):
        load_test(Load(found.server.address, 1, 0.1))
    for wrong in ("ftp://x", "http://x:99999", "http://["):
        with pytest.raises(BadInput, match="http://host:port"):
            load_test(Load(wrong, 1, 0.1))


@pytest.mark.parametrize(
    "answer", [b"", b"\x15\x03\x01", b"HTTP/1.1 200 OK\r\n\r\n[]", b"220 mail\r\n\r\n", b"x" * 99_999]
)
def test_a_load_test_of_something_else_says_so(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_once() -> None:
            line, _ = listening.accept()
            with line, suppress(OSError):
                line.recv(4096)
                line.sendall(answer)

        other = Thread(target=answer_once)
        other.start()
        with pytest.raises(BadInput, match="is no thinwire server"):
            load_test(Load(f"127.0.0.1:{listening.getsockname()[1]}", 1, 0.1))
        other.join()


@pytest.mark.parametrize(
    "arguments",
    [["http://x", "--clients", "0"], ["ftp://x"], [], ["http://x", "--rows", "a"], ["."], [f"http://{'a' * 70}"]],
)
def test_wrong_input_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(arguments)
    assert ended.value.code == 2
