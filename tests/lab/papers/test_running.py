"""An experiment from its file to its report: repeatable, resumable, and never run twice."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from lab.papers.digits import EXPERIMENT, write_digits, write_experiment
from thinwire.base.errors import BadInput
from thinwire.cli.reproduce import reproduce
from thinwire.lab.papers import experiment, runs
from thinwire.lab.papers.experiment import read_experiment_text
from thinwire.lab.papers.report import ReportTexts, draw_charts, write_results
from thinwire.lab.papers.results import collect_results
from thinwire.lab.papers.runs import ExperimentPlan, ExperimentRun, RunObserver, load_plan_data, run_all


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


def plan(folder: Path, data: Path, text: str = EXPERIMENT, out: str = "out") -> ExperimentPlan:
    load_plan_data.cache_clear()
    return ExperimentPlan(write_experiment(folder, text), "quick", None, str(data), folder / out)


def all_of(asked: ExperimentPlan, jobs: int = 1) -> list[ExperimentRun]:
    return sorted(run_all(asked, jobs, lambda *_: RunObserver()), key=lambda one: (one.curve, one.seed))


def told(outcomes: list[ExperimentRun]) -> list[Any]:
    """What must repeat: all but wall-clock seconds."""
    return [[{**event, "seconds": None} for event in one.history] for one in outcomes]


def test_a_finished_run_is_read_and_not_run_again(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = plan(tmp_path, data)
    first = all_of(asked)
    monkeypatch.setattr(runs, "train_to_end", None)
    assert all_of(asked) == first


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, data: Path) -> None:
    whole = all_of(plan(tmp_path, data))
    asked = plan(tmp_path, data, out="again")

    def stop(event: dict[str, Any]) -> None:
        if event["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_all(asked, 1, lambda *_: RunObserver(on_event=stop)))
    assert any((tmp_path / "again").rglob("checkpoints/*"))
    assert told(all_of(asked)) == told(whole)


def test_what_a_run_left_before_its_first_checkpoint_is_cleared_away(tmp_path: Path, data: Path) -> None:
    asked = plan(tmp_path, data)
    folder = asked.folder("svfl", 0)
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("")
    assert all_of(asked)


@pytest.mark.long
def test_several_processes_give_the_same(tmp_path: Path, data: Path) -> None:
    assert told(all_of(plan(tmp_path, data, out="two"), jobs=2)) == told(all_of(plan(tmp_path, data)))


def test_a_run_with_other_settings_is_not_taken_for_this_one(tmp_path: Path, data: Path) -> None:
    all_of(plan(tmp_path, data))
    with pytest.raises(BadInput, match="optimizers differ"):
        all_of(plan(tmp_path, data, EXPERIMENT.replace("lr = 0.5", "lr = 0.4")))


def test_curves_start_from_the_same_weights(tmp_path: Path, data: Path) -> None:
    one, other = all_of(plan(tmp_path, data))
    assert one.history[0]["train"] == other.history[0]["train"]


def test_widths_must_be_as_the_file_says(tmp_path: Path, data: Path) -> None:
    with pytest.raises(BadInput, match=r"width 5, party 'upper_left' has 4"):
        all_of(plan(tmp_path, data, EXPERIMENT.replace("width = 4\nformula", "width = 5\nformula")))


def test_step_sizes_change_at_epochs(tmp_path: Path, data: Path) -> None:
    changed = all_of(plan(tmp_path, data, EXPERIMENT.replace("epochs = 4", "epochs = 4\nlr_factors = [[1, 0.5]]")))
    same = all_of(plan(tmp_path, data, out="same"))
    for one, other in zip(changed, same, strict=True):  # an epoch has 3 rounds
        assert [
            a["train"]["loss"] == b["train"]["loss"] for a, b in zip(one.history, other.history, strict=True)
        ] == [True, True, False]


def test_a_party_may_have_a_link_of_its_own(tmp_path: Path, data: Path) -> None:
    slow = "compute_ms = 1, parties = { upper_left = { bandwidth_mbit = 0.01, compute_ms = 1 } } }"
    one, other = (
        all_of(plan(tmp_path, data, EXPERIMENT.replace("compute_ms = 1 }", link), out=link[:16]))
        for link in ("compute_ms = 1 }", slow)
    )
    assert other[0].history[-1]["link_seconds"] > 2 * one[0].history[-1]["link_seconds"]
    with pytest.raises(BadInput, match=r"link\.parties\.nobody: no feature party has this name"):
        all_of(plan(tmp_path, data, EXPERIMENT.replace("compute_ms = 1 }", slow.replace("upper_left", "nobody"))))


def test_a_run_that_diverges_is_told_and_does_not_end_the_others(tmp_path: Path, data: Path) -> None:
    outcomes = all_of(plan(tmp_path, data, EXPERIMENT.replace("lr = 0.5", "lr = 1e38")))
    assert any(one.diverged for one in outcomes)
    assert len(outcomes) == 2


def test_the_report_needs_nothing_else_and_the_tables_agree(tmp_path: Path, data: Path) -> None:
    asked = plan(tmp_path, data)
    outcomes = all_of(asked)
    summary = write_results(
        asked.experiment(), outcomes, ReportTexts("some digits", read_experiment_text(asked.name)), asked.out
    )
    html = (asked.out / "report.html").read_text()
    for word in ("src=", "href=", "@import", "url("):
        assert word not in html
    assert html.count("<svg") == 4  # by epoch twice, by bytes, by link time
    assert "some digits" in html
    with (asked.out / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(len(one.history) for one in outcomes)
    last = [line for line in lines if line["curve"] == "svfl"][-1]
    final = next(one for one in summary["curves"] if one["name"] == "svfl")["final"]
    assert float(last["bytes.total"]) == final["bytes.total"]["mean"]
    assert float(last["paper_bytes"]) == 2 * 120 * 16 * 4  # two epochs, 4 values of 4 parties, 4 bytes each
    saved = json.loads((asked.out / "summary.json").read_text())
    assert saved["expectations"][0]["met"] is True
    assert saved["expectations"][0]["found"] < 0.9
    assert saved["run"]["epochs"] == 2
    page = (asked.out / "page.md").read_text()
    assert "1 of 1 met" in page
    assert "Seeds: 0 (1 of the file's 2)" in page
    assert len(saved["panels"]) == 4
    for panel in saved["panels"]:
        assert f"]({panel['file']})" in page
        assert (asked.out / panel["file"]).read_text().startswith("<svg xmlns=")


def test_a_plot_has_its_own_scale_and_order_of_curves(tmp_path: Path, data: Path) -> None:
    plot = '[[plot]]\ntitle = "By bytes"\nx = "paper_bytes"\ny = "test.accuracy"\nlog_x = true\n'
    order = 'curves = ["efvfl top-k 10 %", "svfl"]\n'
    asked = plan(tmp_path, data, f"{EXPERIMENT}\n{plot}{order}")
    (chart,) = draw_charts(asked.experiment(), collect_results(asked.experiment(), all_of(asked)))
    assert [line.name for line in chart.lines] == ["efvfl top-k 10 %", "svfl"]
    assert chart.log_x
    assert ">100k<" in chart.svg() or ">10k<" in chart.svg(), "marks at powers of ten"


def test_the_command_runs_and_prints_json(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = write_experiment(tmp_path)
    reproduce(name, quick=True, data=data, out=tmp_path / "out", as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["experiment"] == "tiny"
    assert shown["met"] == 1
    reproduce(name, quick=True, data=data, out=tmp_path / "out")
    printed = capsys.readouterr().out
    assert "1 of 1 met" in printed
    assert "[" not in printed, "the table's colours are not text"


def test_the_list_says_whose_data_is_here(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(data=data, as_json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["experiments"]}
    assert rows["efvfl-fig2"]["here"] is True
    assert rows["celu-table2"]["here"] is False


def test_missing_data_is_said_with_file_folder_and_source(tmp_path: Path, data: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data/mnist/train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(BadInput, match=r"train-labels-idx1-ubyte\.gz.*mnist.*http"):
        reproduce(write_experiment(tmp_path), quick=True, data=tmp_path / "data", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_data_set_without_a_reader_is_said_to_be_one(tmp_path: Path, data: Path) -> None:
    text = EXPERIMENT.replace('data = "mnist"', 'data = "no_such_set"')
    with pytest.raises(BadInput, match="there is no reader for its data set, no_such_set"):
        load_plan_data(plan(tmp_path, data, text))


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five tiny experiments for all that come with the package."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    full_only = EXPERIMENT.replace("[experiment]", "[experiment]\nfull_size_only = true")
    start, end = full_only.index("[quick]"), full_only.index("[[curve]]")
    texts = {
        "a-tiny": EXPERIMENT,
        "b-broken": EXPERIMENT.replace("width = 4\nformula", "width = 5\nformula"),
        "c-full": full_only[:start] + full_only[end:],
        "d-no-data": EXPERIMENT.replace('data = "mnist"', 'data = "cifar100"'),
        "e-no-reader": EXPERIMENT.replace('data = "mnist"', 'data = "no_such_set"'),
        "f-tiny": EXPERIMENT.replace("lr = 0.5", "lr = 0.4"),
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    monkeypatch.setattr(experiment, "_FOLDERS", (folder,))
    load_plan_data.cache_clear()
    return tmp_path / "all"


def test_all_experiments_run_in_one_command_and_go_on_where_they_stopped(
    stand_ins: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop_at_the_last(asked: ExperimentPlan, *others: Any) -> Any:
        if asked.name == "f-tiny":
            raise KeyboardInterrupt
        return run_all(asked, *others)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "run_all", stop_at_the_last)
        with pytest.raises(typer.Exit):
            reproduce(every=True, quick=True, data=data, out=stand_ins)
    assert "run the same command again" in capsys.readouterr().err
    rows = {row["name"]: row for row in json.loads((stand_ins / "summary.json").read_text())["experiments"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "a-tiny": "done",
        "b-broken": "failed",
        "c-full": "not run",
        "d-no-data": "not run",
        "e-no-reader": "not run",
        "f-tiny": "waiting",
    }
    done = (stand_ins / "a-tiny/runs/svfl/seed-0/done.json").stat().st_mtime_ns
    with pytest.raises(BadInput, match="b-broken failed"):
        reproduce(every=True, quick=True, data=data, out=stand_ins)
    assert (stand_ins / "a-tiny/runs/svfl/seed-0/done.json").stat().st_mtime_ns == done, "not run again"
    page = (stand_ins / "index.html").read_text()
    for words in ("1 of 1 met", "f-tiny/report.html", "full size only", "no reader for no_such_set", "width 5"):
        assert words in page
    assert "cifar-100-binary" in page, "the file that is missing"
    assert "f-tiny (3 of 3)" in capsys.readouterr().err


def test_all_takes_no_name() -> None:
    with pytest.raises(BadInput, match="leave out the name"):
        reproduce("efvfl-fig2", every=True)
