"""The report: whole HTML, nothing from elsewhere, all text escaped, bounded, always the same; and true."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from report.records import EVIL, Page, assert_our_script_alone, folder_of, made_up, refers_outside, small_job
from thinwire.base.errors import BadInput
from thinwire.report.figures import curve_figures
from thinwire.report.folder import find_runs, read_run, runs_in, write_report
from thinwire.report.record import Evaluation, Heartbeat, LedgerEntry, RunRecord, append_heartbeat
from thinwire.report.rendering import report_html
from thinwire.report.summary import comparison, group_runs, name_group, tiles


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "celu"
    tw.train(small_job(link=tw.Link(bandwidth_mbit=1, latency_ms=5)), callbacks=[], out=folder)
    return folder


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_report_is_whole_html_and_needs_nothing_else(count: int) -> None:
    html = report_html([made_up(f"run{number}", number % 2, f"method{number // 2}") for number in range(count)])
    page = Page(html)
    assert refers_outside(page) == []
    assert_our_script_alone(html)
    assert "@import" not in html
    assert "url(" not in html
    assert len(set(page.ids())) == len(page.ids()) or count > 1
    assert len(page.named("h1")) == len(page.named("main")) == 1


def test_text_of_a_run_is_text_wherever_it_stands() -> None:
    html = report_html([made_up(evil=EVIL), made_up("other", method="svfl", evil=EVIL)])
    page = Page(html)
    assert_our_script_alone(html)
    assert EVIL in "".join(page.text)
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)


def test_the_same_records_give_the_same_bytes(run_dir: Path) -> None:
    assert report_html([read_run(run_dir)]) == report_html([read_run(run_dir)])


@pytest.mark.long
def test_a_long_run_has_a_report_of_bounded_size() -> None:
    run = made_up()
    events = tuple(run.events[1].model_copy(update={"round": n, "epoch": n / 3}) for n in range(20_000))
    long = type(run)(**{**vars(run), "events": events})
    assert len(report_html([long, made_up("b", method="b")])) < 400_000


def test_a_folder_and_its_result_give_the_same_report(run_dir: Path, tmp_path: Path) -> None:
    result = tw.train(small_job(), callbacks=[], out=tmp_path / "run")
    path = result.report(tmp_path / "r.html")
    shown, again = Page(path.read_text()), Page((tmp_path / "run" / "report.html").read_text())
    assert shown.named("svg") == again.named("svg")
    assert result.record is not None
    from_disk = read_run(tmp_path / "run")
    assert from_disk.events == result.record.events
    assert from_disk.quality == result.record.quality
    assert {e.kind: e for e in from_disk.ledger} == {e.kind: e for e in result.record.ledger}


def test_a_run_without_a_folder_has_a_report_too(tmp_path: Path) -> None:
    result = tw.train(small_job(tw.methods.svfl()), callbacks=[])
    assert "The run was started from Python" in result.report(tmp_path / "deep" / "r.html").read_text()


def test_a_run_leaves_its_report_beside_what_it_is_made_from(run_dir: Path) -> None:
    names = {"about.json", "pulse.json", "timeline.jsonl", "quality.json", "result.json", "report.html"}
    assert names <= set(folder_of(run_dir))
    assert not [name for name in folder_of(run_dir) if name.endswith(".part")]


def test_svfl_sends_what_the_report_holds_others_against() -> None:
    """Counted at the channel, against the figure in about.json: both directions, every batch size."""
    for batch_size in (20, None, 25, 59):
        result = tw.train(small_job(tw.methods.svfl(), batch_size=batch_size), callbacks=[])
        assert result.record is not None
        assert result.record.svfl("up") == pytest.approx(result.bytes.up)
        assert result.record.svfl("down") == pytest.approx(result.bytes.down)


def test_time_on_the_link_is_what_parties_computed_and_waited() -> None:
    """Every second of a party's clock is one or the other; sending is beside it."""
    link = tw.Link(bandwidth_mbit=1, latency_ms=5, compute_ms=2)
    result = tw.train(small_job(tw.methods.svfl(), link=link), callbacks=[])
    assert result.record is not None
    time = result.record.time()
    assert time.keys() == {"bank", "shop", "clinic"}
    end = result.history[-1]["link_seconds"]
    clocks = [sum(seconds for what, seconds in spent.items() if what != "send") for spent in time.values()]
    assert max(clocks) == pytest.approx(end, abs=1e-5)
    assert time["bank"]["compute"] == pytest.approx(9 * 0.002, abs=1e-5)
    up = next(entry for entry in result.record.ledger if entry.sender == "bank" and entry.kind == "EMBEDDING")
    assert time["bank"]["send"] == pytest.approx(up.bytes * 8 / 1e6, abs=1e-5)


def test_local_steps_are_told_from_the_rest() -> None:
    link = tw.Link(bandwidth_mbit=10, latency_ms=1, compute_ms=2)
    result = tw.train(small_job(tw.methods.celu(capacity=2, reuse=3), link=link), callbacks=[])
    assert result.record is not None
    draws = result.history[-1]["diagnostics"]["bank"]["draws"]
    assert result.record.time()["bank"]["local"] == pytest.approx(draws * 0.002, abs=1e-5)


def test_a_resumed_run_takes_back_what_it_makes_again() -> None:
    kept: list[Heartbeat] = []
    for since, now in ((0, 4), (4, 8), (8, 12), (5, 9), (9, 12)):
        append_heartbeat(kept, Heartbeat(time=f"t{since}{now}", since=since, round=now, rounds=12, seconds=1))
    assert [(heartbeat.since, heartbeat.round) for heartbeat in kept] == [(0, 4), (5, 9), (9, 12)]
    append_heartbeat(kept, kept[-1])
    assert len(kept) == 3


def test_a_resumed_run_reports_all_of_itself(tmp_path: Path) -> None:
    tw.train(small_job(epochs=2), callbacks=[], out=tmp_path)
    tw.train(small_job(epochs=4), callbacks=[], out=tmp_path, resume=True)
    record = read_run(tmp_path)
    assert (record.rounds, record.about.rounds, record.state) == (12, 12, "finished")
    rounds = [event.round for event in record.events]
    assert rounds == sorted(set(rounds))
    assert [heartbeat.round for heartbeat in record.heartbeats] == sorted(
        {heartbeat.round for heartbeat in record.heartbeats}
    )


def test_seeds_are_one_line_with_a_band() -> None:
    groups = group_runs([made_up("a", 0), made_up("b", 2), made_up("c", 0, "svfl")])
    assert [(group.name, len(group.runs)) for group in groups] == [("thin", 2), ("svfl", 1)]
    points = groups[0].points("epoch", "test.accuracy")
    for point, (first, second) in zip(points, zip(*(run.events for run in groups[0].runs), strict=True), strict=True):
        a, b = first.test["accuracy"], second.test["accuracy"]
        assert a is not None
        assert b is not None
        assert point.y == pytest.approx((a + b) / 2)
        assert point.deviation == pytest.approx(abs(a - b) / 2**0.5)


@pytest.mark.parametrize(("seeds", "speaks"), [((0, 2), True), ((0,), False)])
def test_a_report_speaks_of_seeds_where_a_method_has_several(seeds: tuple[int, ...], speaks: bool) -> None:
    page = report_html([*(made_up(f"thin-{seed}", seed) for seed in seeds), made_up("c", 0, "svfl")])
    for phrase in ("means and standard deviations over seeds", "Lines are means over seeds"):
        assert (phrase in page) is speaks


def test_runs_that_differ_in_more_than_the_seed_stay_apart() -> None:
    other = made_up("b", 1)
    changed = type(other)(**{**vars(other), "about": other.about.model_copy(update={"batch_size": 7})})
    assert [group.name for group in group_runs([made_up("a"), changed])] == ["thin, a", "thin, b"]


def test_every_metric_that_a_run_is_judged_by_has_its_curves() -> None:
    by_loss, begun = made_up("b"), made_up("c")
    records = [
        replace(begun, events=()),
        made_up("a"),
        replace(by_loss, about=by_loss.about.model_copy(update={"metrics": (), "target": None})),
    ]
    titles = [figure.title for figure in curve_figures([name_group([record]) for record in records])]
    assert titles == [
        f"Test {metric} by {x}" for metric in ("accuracy", "loss") for x in ("epoch", "bytes", "time", "link time")
    ]


def validated() -> RunRecord:
    """A run by AUC on validation rows, whose test rows were scored once."""
    run = made_up()
    events = [
        event.model_copy(update={"validation": {"loss": 0.5, "auc": 0.6 + event.round / 100}, "test": {}})
        for event in run.events
    ]
    events[-1] = events[-1].model_copy(update={"test": {"loss": 0.4, "auc": 0.7}})
    about = run.about.model_copy(
        update={"metrics": ("auc",), "better": {"auc": 1}, "target": None, "validation_rows": 20}
    )
    scored = LedgerEntry(sender="bank", receiver="clinic", kind="TEST", bytes=200, messages=1)
    return replace(run, about=about, events=tuple(events), ledger=(*run.ledger, scored))


def test_scores_are_named_as_people_write_them_with_the_rows_they_are_of() -> None:
    text = "".join(Page(report_html([validated()])).text)
    assert "test AUC0.7000model after round 12; validation AUC 0.7200" in text
    assert "Validation AUC by epoch" in text
    assert "60 training, 20 validation and 30 test rows" in text
    assert not re.search(r"\bauc\b", text)


def test_training_and_validation_share_a_chart() -> None:
    """Of one kind of run; several would be too many lines."""
    titles = ["Validation AUC by epoch", "Training and validation loss by epoch", "Validation AUC by bytes"]
    figures = curve_figures([name_group([validated()])])
    assert [figure.title for figure in figures][:3] == titles
    assert {row[0] for row in figures[1].rows} == {"training loss", "validation loss"}
    both = curve_figures([name_group([validated()]), name_group([replace(validated(), name="other")])])
    assert both[1].title == "Training loss by epoch"


def test_a_loss_that_steers_has_one_chart_by_epoch() -> None:
    run = validated()
    by_loss = replace(run, about=run.about.model_copy(update={"metrics": ()}))
    titles = [figure.title for figure in curve_figures([name_group([by_loss])])]
    assert titles[:2] == ["Training and validation loss by epoch", "Validation loss by bytes"]


def test_all_bytes_come_before_those_of_training() -> None:
    (tile,) = (one for one in tiles(validated()) if one.name == "sent in total")
    assert (tile.value, tile.more) == ("2 kB", "training 1.8 kB: 13.3 times fewer than svfl")
    table = comparison([name_group([validated()])])
    assert dict(zip(table.heads, table.rows[0], strict=True)) | {"": ""} == {
        "": "",
        "test AUC": "0.7000",
        "best validation AUC": "0.7200",
        "rounds": "12",
        "total bytes": "2 kB",
        "training up": "1.2 kB",
        "training down": "600 B",
        "times fewer than svfl": "13.3",
        "time": "1.2 s",
        "link time": "2.4 s",
    }


def test_bytes_are_as_new_as_the_rounds_they_are_divided_by() -> None:
    """A run that goes on has evaluations that its last heartbeat does not know yet."""
    run = made_up()
    late = run.heartbeats[-1].model_copy(update={"round": 3})
    behind = tuple(entry.model_copy(update={"bytes": entry.bytes // 4}) for entry in run.ledger)
    assert replace(run, heartbeats=(late,), ledger=behind).times_fewer_bytes() == run.times_fewer_bytes()


def test_a_probability_is_of_a_class_by_its_name() -> None:
    assert "probability of &#x27;ill&#x27;" in report_html([made_up()])


def test_the_comparison_reads_costs_off_where_the_target_was_met() -> None:
    html = report_html([made_up("a"), made_up("b", method="svfl")])
    met = next(event for event in made_up().events if (event.test["accuracy"] or 0) >= 0.7)
    assert "to accuracy 0.7, or to the end" in html
    assert f'<td class="number">{met.round}</td>' in html
    assert "1 of 1" in html


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_values_that_are_no_numbers_are_left_out(value: Any) -> None:
    run = made_up()
    bad = run.events[2].model_copy(update={"test": {"accuracy": value}, "train": {"loss": value}})
    shown = type(run)(**{**vars(run), "events": (*run.events[:2], bad, *run.events[3:])})
    html = report_html([shown])
    assert not re.search(r'points="[^"]*(nan|inf)', html)
    assert bad.value_at("test.accuracy") is None


def test_a_run_that_has_only_begun_has_a_report() -> None:
    run = made_up()
    for events in ((), run.events[:1]):
        begun = type(run)(
            **{**vars(run), "events": events, "heartbeats": (), "ledger": (), "quality": None, "privacy": ()}
        )
        Page(report_html([begun]))
        Page(report_html([begun, run]))


def test_an_evaluation_is_found_by_its_place() -> None:
    event = Evaluation.model_validate({"round": 1, "epoch": 0.5, "test": {"auc": 0.5}, "bytes": {"up": 3}})
    assert event.value_at("test.auc") == 0.5
    assert event.value_at("bytes.up") == 3
    assert event.value_at("test.nothing") is None
    assert event.value_at("diagnostics") is None


# Folders -----------------------------------------------------------------------------------------------------------


def test_runs_are_found_by_name_and_no_link_leads_out(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for name in ("b/two", "a", "b/one", "c/d/e/f"):
        (root / name).mkdir(parents=True)
        (root / name / "about.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "about.json").write_text("{}")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "round").symlink_to(root)
    assert [str(one.relative_to(root)) for one in find_runs(root)] == ["a", "b/one", "b/two"]
    assert runs_in(root / "a") == [root / "a"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("about.json", "{", "about.json: not what a run writes"),
        ("about.json", '{"method": 3}', "about.json: method: "),
        ("events.jsonl", '{"round": 0}\n', "events.jsonl, line 1: epoch: "),
        ("events.jsonl", "nonsense\n", "events.jsonl, line 1: not what a run writes"),
        ("ledger.json", "[3]", "ledger.json: "),
        ("timeline.jsonl", "[]\n", "timeline.jsonl, line 1: "),
        ("quality.json", '{"task": "guess"}', "quality.json: task: "),
        ("events.jsonl", b"\xff\xfe\n", "not UTF-8"),
        ("events.jsonl", "[" * 100_000 + "\n", "events.jsonl, line 1: not what a run writes"),
        ("quality.json", "[" * 100_000, "quality.json: not what a run writes"),
    ],
)
def test_a_damaged_folder_is_refused_by_file_and_line(
    run_dir: Path, tmp_path: Path, file: str, text: str | bytes, message: str
) -> None:
    for one in run_dir.iterdir():
        if one.is_file():
            (tmp_path / one.name).write_bytes(one.read_bytes())
    (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=re.escape(message)):
        read_run(tmp_path)


@pytest.mark.parametrize("file", ["job.toml", "about.json", "events.jsonl"])
def test_no_link_in_a_folder_brings_another_file_into_the_report(run_dir: Path, tmp_path: Path, file: str) -> None:
    for one in run_dir.iterdir():
        if one.is_file():
            (tmp_path / one.name).write_bytes(one.read_bytes())
    (tmp_path / "elsewhere").write_text("a secret of the reader")
    (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match=f"{file} is a link; a run writes no links"):
        read_run(tmp_path)


def test_a_last_line_that_is_half_written_is_left_out(run_dir: Path, tmp_path: Path) -> None:
    for one in run_dir.iterdir():
        if one.is_file():
            (tmp_path / one.name).write_bytes(one.read_bytes())
    whole = len(read_run(tmp_path).events)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"round": 99, "ep')
    assert len(read_run(tmp_path).events) == whole


def test_a_report_overwrites_a_report_and_nothing_else(tmp_path: Path) -> None:
    write_report([made_up()], tmp_path / "r.html")
    write_report([made_up("other")], tmp_path / "r.html")
    assert "other" in (tmp_path / "r.html").read_text()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="already exists and is not a report"):
        write_report([made_up()], tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(BadInput, match="cannot be written"):
        write_report([made_up()], tmp_path / "notes.txt" / "r.html")


def test_what_keeps_a_report_from_being_written_does_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> str:
        raise RuntimeError("no ink")

    monkeypatch.setattr("thinwire.report.rendering.report_html", failing)
    result = tw.train(small_job(epochs=1), callbacks=[], out=tmp_path)
    assert "no report: no ink" in caplog.text
    assert json.loads((tmp_path / "result.json").read_text())["rounds"] == result.summary()["rounds"] == 3
