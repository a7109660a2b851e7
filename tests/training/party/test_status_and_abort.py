"""`thinwire status` and `thinwire abort` against real parties: processes of their own, TLS on loopback."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from time import monotonic, sleep
from typing import Any

import pytest

from job.small import JOB, write_job
from processes import THINWIRE, Process, Processes
from thinwire import cli
from thinwire.base.errors import Malformed
from thinwire.engine.channel.base import TransportError
from thinwire.job.party_view import read_party_view
from thinwire.net.grpc.client import ask
from thinwire.net.grpc.service import RPCS, Denied
from thinwire.net.pki.authority import issue
from thinwire.report.folder import read_run
from thinwire.report.live.live_run import Board
from thinwire.report.live.sections import health, log_lines, sections
from thinwire.storage.events import EventLog
from thinwire.storage.folder_lock import FolderLock
from thinwire.training.party.status import ask_label_party, read_status
from training.party.parties import Shape, made, ran

Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that goes on until it is ended."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port = tried.getsockname()[1]
    issue(tmp_path / "certs", ["bank", "shop", "clinic"])
    text = JOB.replace("epochs = 2", "epochs = 100000").replace("batch_size = 32", "batch_size = 32\neval_every = 5")
    return write_job(tmp_path, f'{text}\n[network]\nlisten = "127.0.0.1:{port}"\n')


@pytest.fixture
def thinwire(job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command in this process, in the job's folder; `typed` is what a person at a terminal answers."""
    monkeypatch.chdir(job.parent)

    def called(*words: str, typed: str | None = None) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else _Terminal(typed))
        monkeypatch.setattr(sys, "argv", ["thinwire", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown, code = capsys.readouterr(), ended.value.code
        return CompletedProcess(words, code if isinstance(code, int) else 0, shown.out, shown.err)

    return called


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def parties(job: Path, *names: str) -> Iterator[dict[str, Process]]:
    with Processes() as started:
        words: list[str | Path] = [THINWIRE, "party", job.name, "--yes", "--name"]
        yield {name: started.command([*words, name], job.parent) for name in names}


def until(job: Path, holds: Callable[[dict[str, Any]], bool], name: str = "bank") -> dict[str, Any]:
    """The label party's status, once it is as it should be."""
    own = read_party_view(job, name)
    deadline = monotonic() + 300
    while monotonic() < deadline:
        try:
            _, answer = ask_label_party(own, "Status")
            if holds(answer):
                return answer
        except TransportError:
            pass  # it is not up yet
        sleep(0.1)
    raise AssertionError("the run did not come so far")


def ended(process: Process) -> tuple[int, str]:
    return process.code(), process.stderr.splitlines()[-1]


def test_a_run_is_asked_and_aborted_for_good(job: Path, thinwire: Command) -> None:
    with parties(job, "clinic", "bank", "shop") as running:
        until(job, lambda status: status["last_event"] is not None and status["last_event"]["round"] > 0)

        shown = thinwire("status", "job.toml", "--name", "shop")
        assert (shown.returncode, shown.stderr) == (0, "")
        head, bank, shop, sent, last = shown.stdout.splitlines()
        assert re.fullmatch(r"clinic: efvfl, training, round \d+ of 300000(, waiting for '(bank|shop)')?", head)
        assert (bank, shop) == ("  bank  connected", "  shop  connected")
        assert re.fullmatch(r"  \S+ k?M?B up, \S+ k?M?B down, 0 B sent again", sent)
        assert re.fullmatch(r"  evaluated after round \d+", last)  # losses and scores are of the label party's labels
        last = thinwire("status", "job.toml", "--name", "clinic").stdout.splitlines()[-1]
        assert re.fullmatch(r"  evaluated after round \d+: training loss \S+, test loss \S+, test accuracy \S+", last)
        found = json.loads(thinwire("status", "job.toml", "--name", "clinic", "--json").stdout)
        assert found["address"] == read_party_view(job, "bank").network_party.target().address
        assert (found["state"], found["rounds"], set(found["parties"])) == ("training", 300000, {"bank", "shop"})

        # A doctor measures against the run itself.
        found = json.loads(thinwire("doctor", "job.toml", "--name", "bank", "--json").stdout)
        assert [check["name"] for check in found["checks"] if check["verdict"] == "problem"] == []
        found = json.loads(thinwire("doctor", "job.toml", "--name", "clinic", "--json").stdout)
        listen = next(check for check in found["checks"] if check["name"] == "listen")
        assert (listen["verdict"], listen["says"][:25]) == ("warning", "a run of 'clinic' listens")

        _nobody_else_can_end_it(job, thinwire)
        assert until(job, lambda _: True)["state"] == "training"
        assert all(process.poll() is None for process in running.values())

        shown = thinwire("abort", "job.toml", "--name", "bank", typed="y\n")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "This ends the run at every party and cannot be undone." in shown.stdout
        assert "aborted by 'bank': bank, shop, clinic exit with code 1" in shown.stdout
        said = "thinwire: the run was aborted by 'bank'; start another one in a new --out folder [aborted]"
        assert [ended(process) for process in running.values()] == [(1, said)] * 3
    for name in running:
        assert "efvfl, aborted, round " in thinwire("status", "job.toml", "--name", name).stdout

    with parties(job, "clinic", "bank", "shop") as again:
        for name, process in again.items():
            code, said = ended(process)
            assert (code, f"the run in runs/job/{name} was aborted by 'bank'" in said) == (2, True)


def _nobody_else_can_end_it(job: Path, thinwire: Command) -> None:
    shown = thinwire("abort", "job.toml", "--name", "bank")
    assert shown.returncode == 2
    assert "use --yes" in shown.stderr
    shown = thinwire("abort", "job.toml", "--name", "bank", typed="n\n")
    assert (shown.returncode, shown.stdout.endswith("nothing was done\n")) == (0, True)
    # Another run of the same parties.
    for command in (("status",), ("abort", "--yes")):
        shown = thinwire(*command, "job.toml", "--name", "bank", "--set", "job.seed=7")
        assert shown.returncode == 2
        assert "refuses to answer 'bank': the run here is" in shown.stderr
    # A party of another run: of our authority, but not of this job; and one of another authority.
    issue(job.parent / "certs", ["gym"])
    job.with_name("gym.toml").write_text(job.read_text().replace('name = "bank"', 'name = "gym"', 1))
    for command in (("status",), ("abort", "--yes")):
        shown = thinwire(*command, "gym.toml", "--name", "gym")
        assert (shown.returncode, "which is not a party of this run" in shown.stderr) == (2, True)
    issue(job.parent / "foreign", ["bank", "shop", "clinic"])
    for command in (("status",), ("abort", "--yes")):
        shown = thinwire(*command, "job.toml", "--name", "bank", "--set", "network.certs=foreign")
        assert (shown.returncode, "TLS handshake fails" in shown.stderr) == (1, True)
    # A certificate of ours that speaks for another party.
    own = read_party_view(job, "shop")
    target = own.network_party.target()
    lying = type(target)(target.address, target.name, "bank", target.credentials)
    with pytest.raises(Denied, match="the certificate is of 'shop', the call says 'bank'"):
        ask(lying, RPCS["Abort"], {})


def test_a_run_that_waits_is_aborted_by_the_label_party(job: Path, thinwire: Command) -> None:
    with parties(job, "clinic", "bank") as running:
        until(job, lambda status: bool(status["parties"]["bank"]["connected"]))
        shown = thinwire("status", "job.toml", "--name", "shop")
        assert shown.stdout.splitlines()[:3] == [
            "clinic: efvfl, waiting for parties, round 0 of 300000",
            "  bank  connected",
            "  shop  not connected yet",
        ]
        shown = thinwire("abort", "job.toml", "--name", "clinic", "--yes")
        assert shown.returncode == 0
        assert shown.stdout.splitlines()[-2:] == [
            "aborted by 'clinic': bank, clinic exit with code 1 and cannot resume in their folders",
            "shop is not connected: if it took part, clinic keeps running until it has been notified",
        ]
        assert {ended(process)[0] for process in running.values()} == {1}


@pytest.mark.faults
def test_a_run_that_was_stopped_is_shown_as_stopped_with_the_way_on(job: Path, thinwire: Command) -> None:
    with parties(job, "clinic", "bank", "shop") as running:
        until(job, lambda status: status["last_event"] is not None and status["last_event"]["round"] > 0)
        running["shop"].send_signal(signal.SIGINT)
        assert ended(running["shop"])[0] == 130
        until(job, lambda status: bool(status["parties"]["shop"]["stopped"]))
        shown = thinwire("status", "job.toml", "--name", "bank").stdout
        assert re.search(r"  shop  stopped by its operator \S+ s ago; the run resumes once it is", shown)

        running["clinic"].send_signal(signal.SIGINT)
        assert ended(running["clinic"])[0] == 130
        shown = thinwire("status", "job.toml", "--name", "bank").stdout
        assert "it resumes once clinic is restarted; bank need not do anything" in shown
        running["bank"].send_signal(signal.SIGINT)
        assert ended(running["bank"])[0] == 130

    told = thinwire("status", "job.toml", "--name", "bank")
    assert (told.returncode, told.stderr) == (0, "")
    assert "here: thinwire party job.toml --name bank" in told.stdout
    found = json.loads(thinwire("status", "job.toml", "--name", "clinic", "--json").stdout)
    assert (found["state"], found["go_on"]) == ("stopped", "thinwire party job.toml --name clinic")

    board = Board(job.parent / "runs/job")
    runs = {run.name: run for _, run in board.select_runs([])}
    assert {name: run.state() for name, run in runs.items()} == dict.fromkeys(("bank", "shop", "clinic"), "stopped")
    assert sections(board, [])["overview"].count("To resume: <code>thinwire party ") == 3
    assert read_run(job.parent / "runs/job/shop").state == "stopped"
    others = {one.party: one.state for one in health(runs["clinic"], None, "stopped")}
    assert others["shop"] == "stopped"

    words = shlex.split(runs["shop"].going_on())
    before = round_of_the_stop(job)
    with parties(job, "clinic", "bank"), Processes() as again:
        again.command([THINWIRE, *words[1:], "--yes"], Path.cwd())
        until(job, lambda status: status["round"] > before)
        runs["shop"].look()
        assert "resuming from round" in "".join(said for _, said in log_lines(runs["shop"], None))
        assert runs["shop"].state() == "running"


def round_of_the_stop(job: Path) -> int:
    """In which round the label party was."""
    lines = [json.loads(line) for line in (job.parent / "runs/job/clinic/log.jsonl").read_text().splitlines()]
    return next(int(line["at_round"]) for line in lines if line["event"] == "stopped")


def test_nobody_answers(job: Path, thinwire: Command) -> None:
    address = read_party_view(job, "bank").network_party.target().address
    shown = thinwire("status", "job.toml", "--name", "bank")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert f"{address} cannot be reached" in shown.stderr
    shown = thinwire("status", "job.toml", "--name", "clinic", "--json")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert address in shown.stderr
    shown = thinwire("abort", "job.toml", "--name", "bank", "--yes")
    assert shown.returncode == 1
    assert f"{address} cannot be reached" in shown.stderr
    assert "nothing was aborted. This party's own process can be stopped with Ctrl-C" in shown.stderr


def test_after_a_run_each_party_s_own_folder_answers(tmp_path: Path, thinwire: Command) -> None:
    place = made(tmp_path / "ended", Shape(recipe={"method": "svfl"}, job={"metrics": ["accuracy"]}))
    ran(place)

    def status(name: str, *more: str) -> CompletedProcess[str]:
        return thinwire("status", str(place.job), "--name", name, "--out", str(place.out(name)), *more)

    clinic = status("clinic")
    assert (clinic.returncode, clinic.stderr) == (0, "")
    head, how, last = clinic.stdout.splitlines()
    assert head == f"clinic: does not answer at {place.address}; nothing is running here"
    assert how == f"  svfl, finished, round 6 of 6 (from {place.out('clinic')})"
    assert re.fullmatch(r"  evaluated after round 6: training loss \S+, test loss \S+, test accuracy \S+", last)
    bank = status("bank", "--json")
    found = json.loads(bank.stdout)
    assert (bank.returncode, found["running"], found["state"], found["round"]) == (0, False, "finished", 6)
    assert (found["last_event"], found["go_on"]) == (None, None)  # scores are of the label party's labels

    # A process that died: no result, and no word in the log that somebody stopped it.
    (place.out("bank") / "result.json").unlink()
    assert "thinwire party " in status("bank").stdout.splitlines()[-1]
    lock = FolderLock(place.out("bank"))
    lock.acquire()
    assert (status("bank").returncode, status("clinic").returncode) == (1, 0)  # bank runs, and waits for clinic
    lock.release()
    log = EventLog(place.out("bank") / "log.jsonl", "bank", lambda _: None, 9)
    log("aborted", by="shop")
    log.close()
    found = json.loads(status("bank", "--json").stdout)
    assert (found["state"], found["go_on"]) == ("aborted", None)


def test_wrong_input_is_told_before_anybody_is_called(job: Path, thinwire: Command) -> None:
    for command in (("status",), ("abort", "--yes")):
        assert thinwire(*command, "none.toml", "--name", "bank").returncode == 2
        shown = thinwire(*command, "job.toml", "--name", "bnak")
        assert (shown.returncode, "did you mean 'bank'?" in shown.stderr) == (2, True)
    (job.parent / "certs/bank.key").chmod(0o644)
    shown = thinwire("status", "job.toml", "--name", "bank")
    assert (shown.returncode, "chmod 600" in shown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("listen", "called"),
    [
        ('listen = "127.0.0.1:7443"', "127.0.0.1:7443"),
        ('listen = "0.0.0.0:7443"\naddress = "fl.clinic.example:443"', "127.0.0.1:7443"),
        ('listen = "[::]:7443"\naddress = "fl.clinic.example:443"', "[::1]:7443"),
        ('address = "fl.clinic.example:7443"', "127.0.0.1:7443"),
    ],
)
def test_the_label_party_asks_its_own_process(job: Path, listen: str, called: str) -> None:
    job.write_text(re.sub(r"listen = .*", listen, job.read_text()))
    assert read_party_view(job, "clinic").network_party.target().address == called


@pytest.mark.parametrize(
    "answer", [{}, {"label_party": "clinic", "state": "training", "parties": {"bank": 3}}, {"state": 1}]
)
def test_an_answer_that_cannot_be_read(answer: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="the label party's answer cannot be read"):
        read_status(answer)
