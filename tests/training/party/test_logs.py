"""`thinwire logs`: one's own log in words, and the label party's where it shares it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import here  # noqa: F401
from processes import until
from thinwire.base.errors import BadInput, Malformed
from thinwire.job.party_view import read_party_view
from thinwire.net.grpc.client import ask
from thinwire.net.grpc.service import RPCS
from thinwire.storage.events import MOST_SHARED, EventLog
from thinwire.training.party import party_log
from thinwire.training.party.party_log import PartyLog, SharedLog
from thinwire.training.party.status import ask_label_party
from training.party.parties import LABEL_PARTY, PartyProcesses, PartyThread, Place, Shape, made, ran

Here = Callable[..., subprocess.CompletedProcess[str]]
SVFL = Shape({"method": "svfl"})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run."""
    place = made(tmp_path_factory.mktemp("place"), SVFL)
    ran(place)
    return place


def test_ones_own_log_is_told_in_words(done: Place, here: Here) -> None:  # noqa: F811
    words = ("logs", done.job, "--name", "bank", "--out", done.out("bank"))
    shown = here(*words)
    assert shown.returncode == 0, shown.stderr
    assert "'clinic' is connected" in shown.stdout
    assert "all parties are connected: 6 rounds" in shown.stdout
    found = json.loads(here(*words, "--json", "--lines", "3").stdout)
    assert found["party"] == "bank"
    written = [json.loads(line) for line in (done.out("bank") / "log.jsonl").read_text().splitlines()]
    assert found["lines"] == written[-3:]
    assert here(*words, "--party", "bank").stdout == shown.stdout


def test_what_cannot_be_asked(done: Place, here: Here) -> None:  # noqa: F811
    words = ("logs", done.job, "--name", "bank", "--out", done.out("bank"))
    for wrong, said in (
        (["--follow", "--json"], "because a JSON object must end"),
        (["--party", "shop"], "it only makes calls and does not accept any; only 'clinic'"),
        (["--party", "gym"], "it is not a party of this job"),
        (["--out", done.folder / "nowhere"], "the party has not started here"),
    ):
        shown = here(*words, *wrong)
        assert (shown.returncode, said in shown.stderr) == (2, True), shown.stderr
    shown = here(*words, "--party", "clinic")
    assert (shown.returncode, "cannot be reached" in shown.stderr) == (1, True)


def with_label_party(place: Place, check: Callable[[], None], *settings: str) -> None:
    party = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY), settings=settings)
    try:
        party.start()
        until(lambda: party.run.session.events.count("listening"))
        check()
    finally:
        party.over()


def test_the_label_party_shares_its_log_only_where_it_says_so(tmp_path: Path, here: Here) -> None:  # noqa: F811
    place = made(tmp_path, SVFL)
    words = ("logs", place.job, "--name", "bank", "--party", LABEL_PARTY)

    def refused() -> None:
        shown = here(*words)
        assert (shown.returncode, "'clinic' does not share its log" in shown.stderr) == (2, True)

    def shared() -> None:
        found = json.loads(here(*words, "--json").stdout)
        assert found["party"] == LABEL_PARTY
        (line,) = [line for line in found["lines"] if line["event"] == "listening"]
        assert line.keys() == {"time", "party", "event", "peer", "round"}  # not the address
        assert "listening" in here(*words).stdout
        log = SharedLog(read_party_view(place.job, "bank"), LABEL_PARTY)
        assert len(list(log.lines())) == len(found["lines"])
        assert list(log.lines()) == []  # those were told already
        target = ask_label_party(read_party_view(place.job, "bank"), "Status")[0]
        for since in (-1, "x", None, 1 << 63):
            with pytest.raises(Exception, match="since"):
                ask(target, RPCS["Logs"], {"since": since})

    with_label_party(place, refused)
    with_label_party(place, shared, "network.share_log=true")


def test_what_is_shared_is_bounded_and_says_no_reasons(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log.jsonl", "clinic", lambda _: None, lines=10_000)
    log("fell_back", why="/secret/path: row 7 holds NaN")
    log("checkpoint", generation=3)  # not told to people
    for number in range(MOST_SHARED + 5):
        log.round = number
        log("connected", "bank")
    lines, following = log.read_shared(0)
    assert len(lines) == MOST_SHARED
    assert following == MOST_SHARED + 6
    assert lines[-1]["round"] == MOST_SHARED + 4
    assert "secret" not in json.dumps(lines)
    assert log.read_shared(following - 2)[0] == lines[-2:]
    assert log.read_shared(1 << 62)[0] == []
    log.close()


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"party": "clinic", "lines": [{"time": 3}], "next": 0},
        {"party": "clinic", "lines": [], "next": -1},
        {"party": "clinic", "lines": [{"time": "t", "party": "p", "event": "e"}] * (MOST_SHARED + 1), "next": 1},
    ],
)
def test_an_answer_that_cannot_be_read(done: Place, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> None:
    monkeypatch.setattr(party_log, "ask_label_party", lambda *_: (None, answer))
    with pytest.raises(Malformed, match="the label party's answer cannot be read"):
        list(SharedLog(read_party_view(done.job, "bank"), LABEL_PARTY).lines())


def test_a_peers_words_steer_no_terminal(done: Place, monkeypatch: pytest.MonkeyPatch, here: Here) -> None:  # noqa: F811
    line = {
        "time": "\x1b[2Jt",
        "party": "clinic",
        "event": "connected\n\x1b[31m",
        "peer": "{x.__class__}",
        "round": 1,
    }
    answer = {"party": "clinic", "lines": [line], "next": 1}
    monkeypatch.setattr(party_log, "ask_label_party", lambda *_: (None, answer))
    shown = here("logs", done.job, "--name", "bank", "--party", LABEL_PARTY)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert len(shown.stdout.splitlines()) == 1


def test_a_log_is_followed_through_half_lines_and_cleaning(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "a"}\n{"event": "b"')
    log = PartyLog(tmp_path)
    assert [line["event"] for line in log.lines()] == ["a"]
    with path.open("a") as file:
        file.write("}\nno JSON\n[1]\n")
    assert [line["event"] for line in log.lines()] == ["b"]
    path.with_name("new").write_text('{"event": "c"}\n')
    path.with_name("new").replace(path)
    assert [line["event"] for line in log.lines()] == ["c"]
    with pytest.raises(BadInput, match="the party has not started here"):
        PartyLog(tmp_path / "nowhere")


@pytest.mark.faults
def test_follow_goes_on_until_ctrl_c(done: Place, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.jsonl").write_text(
        '{"time": "2030-01-01T00:00:00", "event": "budget", "rounds": 1, "planned": 2}\n'
    )
    with PartyProcesses() as started:
        words: list[str | Path] = ["-m", "thinwire", "logs", done.job, "--name", "bank", "--out", folder, "--follow"]
        process = started.command([sys.executable, *words], tmp_path)
        until(lambda: "2030-01-01T00:00:00" in process.stdout or process.ended)
        with (folder / "log.jsonl").open("a") as file:
            file.write('{"time": "2030-01-02T00:00:00", "event": "stopping"}\n')
        until(lambda: "stopping after this round" in process.stdout or process.ended)
        process.interrupt()
        assert process.code() == 130, process.stderr
        assert "the privacy budget allows 1 of 2 rounds" in process.stdout
        assert "Traceback" not in process.stderr
