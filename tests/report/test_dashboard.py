"""The live page: what it serves and what it never does; followed files; a run as it goes on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import pytest

import thinwire as tw
from report.records import EVIL, Page, made_up, refers_outside, small_job
from report.serving import served
from thinwire.base.errors import BadInput
from thinwire.report.folder import read_run
from thinwire.report.live.live_run import Board, LiveRun
from thinwire.report.live.sections import health, log_lines, page, sections
from thinwire.report.record import RunRecord
from thinwire.storage.events import sentence
from thinwire.storage.json_file import LineFollower, read_object


def written(folder: Path, run: RunRecord, finished: bool = False) -> Path:
    """A folder as that run would leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "about.json").write_text(run.about.model_dump_json())
    (folder / "events.jsonl").write_text("".join(event.model_dump_json() + "\n" for event in run.events))
    (folder / "pulse.json").write_text(run.heartbeats[-1].model_dump_json())
    (folder / "timeline.jsonl").write_text(run.heartbeats[-1].slim().model_dump_json() + "\n")
    if finished:
        (folder / "result.json").write_text(json.dumps({"privacy": list(run.privacy), "interrupted": False}))
    return folder


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    written(tmp_path / "runs" / "one", made_up("one"), finished=True)
    written(tmp_path / "runs" / "two", made_up("two", method="svfl"))
    (tmp_path / "secret.txt").write_text("secret")
    with served(tmp_path / "runs") as found:
        yield found


def get(address: str, **headers: str) -> HTTPResponse:
    found: HTTPResponse = urlopen(Request(address, headers=headers), timeout=300)  # noqa: S310
    return found


# What is served ------------------------------------------------------------------------------------------------


def test_the_page_is_whole_html_and_refers_to_itself_alone(address: str) -> None:
    with get(address) as answer:
        html = answer.read().decode()
    shown = Page(html)
    assert [one for one in refers_outside(shown) if "=/" not in one] == []
    assert [attributes["src"] for attributes in shown.named("script")] == ["/page.js"]
    assert {"runs", "overview", "curves", "details"} <= set(shown.ids())
    assert len(set(shown.ids())) == len(shown.ids())
    assert html.count("<svg") == html.count("as a table</summary>")  # each chart can be read


def test_everything_is_named_for_those_who_cannot_see(address: str) -> None:
    with get(address) as answer:
        shown = Page(answer.read().decode())
    labels = {attributes["for"] for attributes in shown.named("label")}
    fields = [attributes["id"] for tag in ("input", "progress", "meter") for attributes in shown.named(tag)]
    assert fields
    assert labels == set(fields)
    assert all(attributes.get("aria-label") for attributes in shown.named("svg"))
    ids = set(shown.ids())
    for _, attributes in shown.tags:
        assert attributes.get("aria-labelledby") is None or attributes["aria-labelledby"] in ids
    assert [len(shown.named(tag)) for tag in ("main", "nav", "header", "h1")] == [1, 1, 1, 1]
    assert all(attributes.get("scope") for attributes in shown.named("th"))


def test_a_browser_is_told_to_run_nothing_from_elsewhere(address: str) -> None:
    for place, status in (("/", 200), ("/page.js", 200), ("/page.css", 200), ("/nothing", 404)):
        connection = HTTPConnection(urlsplit(address).netloc, timeout=300)
        connection.request("GET", place)
        answer = connection.getresponse()
        assert answer.status == status
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        connection.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_other_names_are_refused(address: str, host: str) -> None:
    """Else a page elsewhere could have its name lead here, and read the runs."""
    with pytest.raises(HTTPError, match="421"):
        get(address, Host=host)
    with get(address, Host="localhost:1234") as answer:
        assert answer.status == 200


def test_other_names_are_refused_wherever_it_listens(tmp_path: Path) -> None:
    for host, names in (("0.0.0.0", ["10.1.2.3:8765"]), ("runs.example", ["runs.example", "Runs.Example:80"])):  # noqa: S104
        with served(tmp_path, host) as address:
            for name in names:
                with get(address, Host=name) as answer:
                    assert answer.status == 200
            with pytest.raises(HTTPError, match="421") as refused:
                get(address, Host="evil.example")
            assert b"by its address, or by the name in --host" in refused.value.read()


@pytest.mark.parametrize(
    "place",
    [
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/one/about.json",
        "/runs/one/private.json",
        "/etc/passwd",
        "//etc/passwd",
    ],
)
def test_no_file_is_served(address: str, place: str) -> None:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=300)
    connection.request("GET", place)
    answer = connection.getresponse()
    assert answer.status == 404
    assert b"secret" not in answer.read()
    connection.close()


@pytest.mark.parametrize(
    "asked", ["../secret.txt", "%2e%2e%2fsecret.txt", "/etc", "one", "0", "%00", EVIL, "x" * 5000]
)
def test_what_is_asked_for_is_looked_up_and_never_a_path(address: str, asked: str) -> None:
    with get(f"{address}/?run={quote(asked)}") as answer:
        html = answer.read().decode()
    assert "secret" not in html
    assert "<script>" not in html


def test_only_reading_is_allowed(address: str) -> None:
    with pytest.raises(HTTPError, match="405"):
        urlopen(Request(address, data=b"x", method="POST"), timeout=300)  # noqa: S310


def test_news_comes_as_events_and_only_what_has_changed(tmp_path: Path) -> None:
    run = made_up("one")
    folder = written(tmp_path / "runs" / "one", run)
    with served(tmp_path / "runs") as address, get(f"{address}/events") as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        assert next_sections(stream).keys() == {"live", "runs", "overview", "curves", "details"}
        with (folder / "events.jsonl").open("a") as file:
            late = run.events[-1].model_copy(update={"round": 15, "epoch": 5.0, "test": {"accuracy": 0.987654}})
            file.write(late.model_dump_json() + "\n")
        found: dict[str, str] = {}
        while "0.9877" not in found.get("overview", ""):
            found |= next_sections(stream)
        assert "runs" not in found


def next_sections(stream: HTTPResponse) -> dict[str, str]:
    while True:
        line = stream.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("data: "):
            found: dict[str, str] = json.loads(line[6:])
            return found


def test_a_finished_run_is_served_as_it_ended(address: str) -> None:
    with get(address) as answer:
        text = "".join(Page(answer.read().decode()).text)
    assert "finished" in text
    assert "epsilon 2 of 8" in text


# Sections --------------------------------------------------------------------------------------------------------


def test_text_of_a_run_is_text_wherever_it_stands(tmp_path: Path) -> None:
    folder = written(tmp_path / EVIL.replace("/", "_"), made_up(evil=EVIL), finished=True)
    line = {"time": f"2026-01-01T00:00:00{EVIL}", "party": EVIL, "event": "connected", "peer": EVIL, "round": 1}
    (folder / "log.jsonl").write_text(json.dumps(line) + "\n")
    html = page(Board(tmp_path), [])
    assert "<script>" not in html
    assert [attributes["src"] for attributes in Page(html).named("script")] == ["/page.js"]
    assert "&lt;script&gt;" in html


def test_runs_are_shown_by_choice_or_the_newest_four(tmp_path: Path) -> None:
    for number in range(6):
        folder = written(tmp_path / f"run{number}", made_up(f"run{number}"))
        os.utime(folder / "about.json", (number, number))
    board = Board(tmp_path)
    assert [run.name for _, run in board.select_runs([])] == ["run2", "run3", "run4", "run5"]
    keys = {run.name: key for key, run in board.runs.items()}
    assert [run.name for _, run in board.select_runs([keys["run1"], "nothing", keys["run0"], keys["run1"]])] == [
        "run1",
        "run0",
    ]
    shown = Page(sections(board, [keys["run1"]])["runs"])
    ticked = [attributes["value"] for attributes in shown.named("input") if "checked" in attributes]
    assert ticked == [keys["run1"]]


def test_all_seeds_of_the_newest_kinds_are_shown(tmp_path: Path) -> None:
    for number, method in enumerate(("a", "b", "c", "d", "e")):
        for seed in range(2):
            folder = written(tmp_path / f"{method}-{seed}", made_up(method, seed=seed, method=method))
            os.utime(folder / "about.json", (number, number))
    board = Board(tmp_path)
    assert [run.name for _, run in board.select_runs([])] == [f"{kind}-{seed}" for kind in "bcde" for seed in (0, 1)]


def test_a_run_has_the_colour_of_its_lines(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log.jsonl").write_text(log_line("listening", None, 0))
    for name in ("b", "c"):
        written(tmp_path / name, made_up(name))
    shown = sections(Board(tmp_path), [])
    assert [run.name for _, run in Board(tmp_path).select_runs([])] == ["a", "b", "c"]
    swatches = re.findall(r'class="swatch s(\d)"[^>]*></span>(\w)', shown["overview"])
    assert swatches == [("0", "b"), ("1", "c")]
    lines = dict(re.findall(r'class="line c(\d)".*?<title>(\w)</title>', shown["curves"]))
    assert lines == {"0": "b", "1": "c"}


def test_the_page_is_live_only_while_something_runs(tmp_path: Path) -> None:
    board = Board(tmp_path)
    assert sections(board, [])["live"] == "Nothing is running."
    run = made_up("run")
    folder = written(tmp_path / "run", run)
    board._found = -10.0
    assert sections(board, [])["live"] == "Nothing is running."  # its last sign of life is old
    now = run.heartbeats[-1].model_copy(update={"time": datetime.now(UTC).isoformat()})
    (folder / "pulse.json").write_text(now.model_dump_json())
    board._looked.clear()
    assert sections(board, [])["live"] == "Live."
    written(tmp_path / "a", run)
    board._found = -10.0
    assert re.findall(r"</span>(\w+)</strong>", sections(board, [])["overview"]) == ["run", "a"]
    (tmp_path / "a" / "result.json").write_text("{}")
    (folder / "result.json").write_text("{}")
    board._looked.clear()
    assert sections(board, [])["live"] == "Nothing is running."
    written(tmp_path / "other", run)
    board._found = -10.0
    board.select_runs([])
    assert sections(board, [next(iter(board.runs))])["live"] == "None of the runs shown is running."


def test_seeds_of_one_method_share_a_line_and_a_place_in_the_list(tmp_path: Path) -> None:
    for seed in (0, 1):
        written(tmp_path / f"celu-{seed}", made_up(f"celu-{seed}", seed=seed, method="celu"))
    written(tmp_path / "thin-0", made_up("thin-0", rounds=9))
    shown = sections(Board(tmp_path), [])
    lines = set(re.findall(r'class="line c(\d)".*?<title>([^<]+)</title>', shown["curves"]))
    assert lines == {("0", "celu, 2 seeds"), ("1", "thin-0")}
    assert re.findall(r'class="swatch s(\d)"[^>]*></span>([\w-]+)', shown["overview"]) == [
        ("0", "celu-0"),
        ("0", "celu-1"),
        ("1", "thin-0"),
    ]
    listed = [re.findall(r"> ([^<]+)</label>", one) for one in shown["runs"].split("<li>")[1:]]
    assert listed == [["celu, seed 0", "seed 1"], ["thin-0"]]
    assert 'aria-label="celu, seed 1"' in shown["runs"]
    assert re.findall(r"</span>([\w-]+)</h2>", shown["details"]) == ["celu-0", "thin-0"]
    assert shown["details"].count("one of 2 seeds") == 1


def test_the_baseline_is_always_offered(tmp_path: Path) -> None:
    for name, method in (("a", "thin"), ("b", "celu"), ("c", "svfl")):
        written(tmp_path / name, made_up(name, method=method))
    board = Board(tmp_path)
    board.select_runs([])
    keys = {run.name: key for key, run in board.runs.items()}
    alone = sections(board, [keys["b"]])["runs"]
    assert [attributes["value"] for attributes in Page(alone).named("input")] == [keys[name] for name in "cab"]
    assert f'href="/?run={keys["c"]}&amp;run={keys["b"]}"' in alone
    assert "with-baseline" not in sections(board, [keys["b"], keys["c"]])["runs"]
    (tmp_path / "c" / "about.json").unlink()  # without svfl it is the first run
    first = Board(tmp_path)
    first.select_runs([])
    assert f'href="/?run={keys["a"]}&amp;run={keys["b"]}"' in sections(first, [keys["b"]])["runs"]


def test_names_are_short_beside_each_other(tmp_path: Path) -> None:
    for name in ("demo-1/svfl", "demo-1/thin"):
        written(tmp_path / name, made_up(name))
    overview = sections(Board(tmp_path), [])["overview"]
    assert "thin" in overview
    assert "demo-1/" not in overview


@pytest.mark.parametrize(
    "file", ["about.json", "events.jsonl", "pulse.json", "timeline.jsonl", "result.json", "log.jsonl"]
)
@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"round": "x"}\n', "\x00\xff"])
def test_a_damaged_folder_does_not_break_the_page(tmp_path: Path, file: str, text: str) -> None:
    folder = written(tmp_path / "run", made_up())
    (folder / file).write_text(text)
    Page(page(Board(tmp_path), []))


def test_a_folder_without_runs_waits_for_one(tmp_path: Path) -> None:
    board = Board(tmp_path)
    assert "No runs yet" in page(board, [])
    written(tmp_path / "run", made_up())
    board._found = -10.0
    assert "No runs yet" not in page(board, [])
    with pytest.raises(BadInput, match="the folder does not exist"):
        Board(tmp_path / "nothing")


def test_a_real_run_is_shown(tmp_path: Path) -> None:
    tw.train(small_job(link=tw.Link(bandwidth_mbit=1)), callbacks=[], out=tmp_path / "celu")
    html = page(Board(tmp_path), [])
    for title in ("Training bytes by direction and kind", "Time by party", "Cosine of cached values", "Round 9"):
        assert title in html
    assert "round 9 of 9" in html
    assert ">since<" not in html  # parties in one process have no connections to tell of


# Following --------------------------------------------------------------------------------------------------------


def test_a_file_is_followed_as_it_grows_is_cut_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    follower = LineFollower(path)
    assert follower.look() == (False, [])
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert follower.look() == (False, [{"a": 1}, {"a": 2}])
    with path.open("a") as file:
        file.write(': 3}\nnonsense\n[]\n{"a": 4}\n')
    assert follower.look() == (False, [{"a": 3}, {"a": 4}])
    assert follower.look() == (False, [])
    (tmp_path / "new").write_text('{"a": 1}\n{"a": 9}\n')
    os.replace(tmp_path / "new", path)
    assert follower.look() == (True, [{"a": 1}, {"a": 9}])
    path.write_text('{"b": 1}\n')  # shorter, in place
    assert follower.look() == (True, [{"b": 1}])
    path.unlink()
    assert follower.look() == (True, [])
    assert follower.look() == (False, [])


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"secret": 1}\n')
    (tmp_path / "link.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("link.json", "pipe.json", "missing.json"):
        assert read_object(tmp_path / name) is None
        assert LineFollower(tmp_path / name).look() == (False, [])
    assert read_object(tmp_path / "secret.json") == {"secret": 1}


def test_a_restarted_run_is_read_anew(tmp_path: Path) -> None:
    tw.train(small_job(epochs=2), callbacks=[], out=tmp_path)
    run = LiveRun(tmp_path, "run")
    run.look()
    assert run.state() == "finished"
    tw.train(small_job(epochs=4), callbacks=[], out=tmp_path, resume=True)
    run.look()
    record = run.record("run")
    assert record is not None
    assert [event.round for event in record.events] == [0, 3, 6, 9, 12]
    assert record.about.rounds == 12


def test_states_follow_from_signs_of_life(tmp_path: Path) -> None:
    folder = written(tmp_path, made_up())
    run = LiveRun(folder, "run")
    assert run.state() == "waiting"
    run.look()
    seen = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert run.state(seen + timedelta(seconds=5)) == "running"
    assert run.state(seen + timedelta(minutes=5)) == "silent"
    assert run.silent_seconds(seen + timedelta(minutes=5)) == 300
    for interrupted, state in ((False, "finished"), (True, "stopped")):
        (folder / "result.json").write_text(json.dumps({"interrupted": interrupted}))
        run.look()
        assert run.state() == state


# Parties and log -------------------------------------------------------------------------------------------------


def log_line(event: str, peer: str | None, second: int, **facts: object) -> str:
    time = f"2026-01-01T00:00:{second:02d}.000+00:00"
    return json.dumps({"time": time, "party": "clinic", "event": event, "peer": peer, "round": 3, **facts}) + "\n"


def test_health_is_each_peers_last_word(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(
        log_line("connected", "bank", 1)
        + log_line("connected", "shop", 2)
        + log_line("disconnected", "bank", 3, why="reset")
        + log_line("connected", "bank", 4)
        + log_line("waiting", "shop", 5, what="EMBEDDING", left_seconds=3)
        + log_line("left", "bank", 6)
    )
    run = LiveRun(tmp_path, "run")
    run.look()
    found = {one.party: one for one in health(run, None, "waiting")}
    assert (found["bank"].state, found["bank"].since, found["bank"].more) == (
        "finished",
        "00:00:06",
        "connected 2 times",
    )
    assert (found["shop"].state, found["shop"].good, found["shop"].more) == ("connected", False, "waiting")
    assert found["clinic"].state == "waiting"
    assert ("00:00:03", "'bank' disconnected: reset") in log_lines(run, None)


def test_a_party_that_was_stopped_is_no_silent_one(tmp_path: Path) -> None:
    """Until it is started again; its folder knows it, and so do the others'."""
    folder = written(tmp_path / "clinic", made_up())
    (folder / "job.toml").write_text("")
    log = folder / "log.jsonl"
    log.write_text(
        log_line("listening", None, 1)
        + log_line("paused", "bank", 2, at_round=3)
        + log_line("disconnected", "bank", 3, why="gone")
        + log_line("stopped", None, 4, at_round=3)
        + log_line("disconnected", "shop", 5, why="closed")
    )
    run = LiveRun(folder, "run")
    run.look()
    assert run.state(datetime(2027, 1, 1, tzinfo=UTC)) == "stopped"
    assert run.going_on() == f"thinwire party {folder}/job.toml --name clinic --out {folder}"
    assert {one.party: one.state for one in health(run, None, "stopped")} == {
        "clinic": "stopped",
        "bank": "stopped",
        "shop": "away",
    }
    assert read_run(folder).state == "stopped"
    assert f"To resume: <code>{run.going_on()}</code>" in sections(Board(tmp_path), [])["overview"]
    with log.open("a") as file:
        file.write(log_line("listening", None, 6))
    run.look()
    assert run.state(datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)) == "running"
    assert run.going_on() == ""


def test_a_simulated_run_that_was_stopped_says_how_it_goes_on(tmp_path: Path) -> None:
    folder = written(tmp_path, made_up())
    (folder / "result.json").write_text(json.dumps({"interrupted": True}))
    run = LiveRun(folder, "run")
    run.look()
    assert (run.state(), run.going_on()) == ("stopped", ""), "begun from Python"
    (folder / "job.toml").write_text("")
    assert run.going_on() == f"thinwire train {folder}/job.toml --out {folder} --resume"


def test_a_simulated_run_has_its_evaluations_for_a_log(tmp_path: Path) -> None:
    run = LiveRun(written(tmp_path, made_up()), "run")
    run.look()
    assert log_lines(run, run.record("run"))[-1] == ("round 12", "test accuracy 0.8571")
    states = [(one.party, one.good) for one in health(run, run.record("run"), "silent")]
    assert states == [("bank", False), ("clinic", False)]


@pytest.mark.parametrize("line", [{}, {"event": 3}, {"event": []}, {"event": {}}, {"event": "made up"}])
def test_a_line_that_is_none_of_ours_has_no_sentence(line: dict[str, object]) -> None:
    assert sentence(line) is None


@pytest.mark.parametrize("facts", [{}, {"left_seconds": "x", "peer": "bank", "what": "it"}])
def test_a_line_that_lacks_something_is_told_by_its_name(facts: dict[str, object]) -> None:
    assert sentence({"event": "waiting", **facts}) == "waiting"
