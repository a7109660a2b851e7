"""A label party that may open few files, beside callers that connect, say nothing and stay."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

from net.raw_http2 import is_open
from processes import until
from thinwire.net.grpc.service import BUDGETS, Role
from thinwire.training.party.metrics import MetricsServer
from thinwire.training.party.party_run import PartyRun
from training.party.parties import LABEL_PARTY, PartyProcesses, Shape, made

FILES = 160


def test_idle_connections_do_not_end_a_training_that_may_open_few_files(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}, job={"epochs": 6}))

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", place.port))

    with PartyProcesses() as processes, ExitStack() as idle:
        label = processes.party(place, LABEL_PARTY)
        resource.prlimit(label.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        label.says("listening")
        for _ in range(2 * FILES):
            with suppress(OSError):  # hung up on
                idle.enter_context(connect())
        others = [processes.party(place, name) for name in place.feature_parties]
        until(lambda: any((place.out(LABEL_PARTY) / "sent").rglob("*.log")) or label.ended)
        for _ in range(2 * FILES):
            with suppress(OSError):
                idle.enter_context(connect())
        for process in (label, *others):
            assert process.summary()["rounds"] == 18


def test_idle_connections_to_the_metrics_are_few_and_keep_nobody_out() -> None:
    server = MetricsServer(("127.0.0.1", 0), cast(PartyRun, None))
    server._server.socket.listen(128)  # or they would have to dial again and again
    most = BUDGETS[Role.ADDRESS].connections
    with ExitStack() as held:
        held.callback(server.close)
        place = ("127.0.0.1", server.port)
        idle = [held.enter_context(socket.create_connection(place)) for _ in range(4 * most)]
        until(lambda: sum(map(is_open, idle)) <= most)
        asking = held.enter_context(socket.create_connection(place))
        asking.sendall(b"GET /metrics HTTP/1.1\r\nHost: elsewhere\r\n\r\n")
        assert b"421" in asking.recv(99)
