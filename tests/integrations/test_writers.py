"""Writers: what they write is the run's history. TensorBoard is the real one; MLflow and wandb are stand-ins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from integrations.fakes import FakeMLflow, FakeWandb
from integrations.jobs import small_job
from job.small import write_job
from processes import run
from thinwire.integrations import MLflow, TensorBoard, Wandb, build_writers
from thinwire.integrations.trackers import PartyWriters, parameters, scalars
from thinwire.job.party_view import PartyView, read_party_view
from training.party.parties import LABEL_PARTY, PartyProcesses, Shape, left_events, made


def tensorboard_curves(folder: Path) -> dict[str, dict[int, float]]:
    """By TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return {tag: {one.step: one.value for one in read.Scalars(tag)} for tag in read.Tags()["scalars"]}


def curves(history: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for event in history:
        for name, value in scalars(event).items():
            found.setdefault(name, {})[event["round"]] = value
    return found


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMLflow:
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_scalars_are_the_numbers_of_an_evaluation_by_their_place() -> None:
    event = {
        "round": 4,
        "epoch": 2.0,
        "test": {"accuracy": 0.5, "loss": float("nan")},
        "bytes": {"up": 7},
        "link_seconds": None,
        "diagnostics": {"bank": {"backed_off": [1], "on": True}},
    }
    assert scalars(event) == {"epoch": 2.0, "test/accuracy": 0.5, "bytes/up": 7.0}


def test_tensorboard_shows_the_history(tmp_path: Path) -> None:
    result = tw.train(small_job(), callbacks=[TensorBoard(tmp_path / "logs")])
    found, wanted = tensorboard_curves(tmp_path / "logs"), curves(result.history)
    assert found.keys() == wanted.keys() >= {"test/accuracy", "train/loss", "bytes/up", "bytes/down", "seconds"}
    for name, curve in wanted.items():
        assert found[name] == pytest.approx(curve, rel=1e-6), name


def test_tensorboard_has_parameters_and_lies_in_the_runs_folder(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tw.train(small_job(), callbacks=[TensorBoard()], out=tmp_path / "run")
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    (said,) = read.Tensors("parameters/text_summary")
    text = said.tensor_proto.string_val[0].decode()
    assert "| seed | 5 |" in text
    assert "| recipe/uplink/compressor/fraction | 0.5 |" in text
    (report,) = read.Tensors("report/text_summary")
    assert report.tensor_proto.string_val[0].decode() == f"`{tmp_path / 'run' / 'report.html'}`"


def test_a_resumed_run_is_in_tensorboard_as_if_nobody_had_stopped_it(tmp_path: Path) -> None:
    tw.train(small_job(epochs=2), callbacks=[TensorBoard()], out=tmp_path)
    result = tw.train(small_job(epochs=4), callbacks=[TensorBoard()], out=tmp_path, resume=True)
    found = tensorboard_curves(tmp_path / "tensorboard")
    assert found["train/loss"] == pytest.approx(curves(result.history)["train/loss"], rel=1e-6)
    assert len(found["train/loss"]) == 5


def test_tensorboard_without_any_folder_is_refused_before_the_start() -> None:
    job = small_job()
    before = job.label_party.top.state_dict()["weight"].clone()
    with pytest.raises(tw.errors.BadInput, match="TensorBoard needs a folder"):
        tw.train(job, callbacks=[TensorBoard()])
    assert job.label_party.top.state_dict()["weight"].equal(before)


def test_mlflow_has_metrics_parameters_and_the_report(mlflow: FakeMLflow, tmp_path: Path) -> None:
    writer = MLflow(experiment="two companies", tracking_uri="http://tracking.example")
    result = tw.train(small_job(), callbacks=[writer], out=tmp_path / "first")
    (kept,) = mlflow.runs.values()
    assert (mlflow.experiment, mlflow.uri) == ("two companies", "http://tracking.example")
    assert (kept.name, kept.status) == ("first", "FINISHED")
    assert kept.metrics == curves(result.history)
    assert kept.parameters["seed"] == "5"
    assert kept.parameters["recipe/name"] == "efvfl"
    assert kept.artifacts == {"report.html": result.report(tmp_path / "again.html").read_text()}
    assert mlflow.active_run() is None


def test_mlflow_writes_into_the_active_run_and_leaves_it_open(mlflow: FakeMLflow) -> None:
    mlflow.start_run(run_name="mine")
    tw.train(small_job(), callbacks=[MLflow()])
    (kept,) = mlflow.runs.values()
    assert (kept.name, kept.status) == ("mine", "RUNNING")
    assert "report.html" in kept.artifacts


def test_a_server_that_goes_away_ends_the_writing_and_not_the_run(
    mlflow: FakeMLflow, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow.away_from = 2
    result = tw.train(small_job(), callbacks=[MLflow()])
    assert result.history[-1]["round"] == 6
    (kept,) = mlflow.runs.values()
    assert set(kept.metrics["train/loss"]) == {0}
    (said,) = caplog.messages
    assert said == "cannot write to mlflow any longer (connection refused); the run continues without it"


def test_a_run_that_fails_is_failed_at_the_server_too(mlflow: FakeMLflow) -> None:
    def broken(event: dict[str, Any]) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        tw.train(small_job(), callbacks=[MLflow(), broken])
    (kept,) = mlflow.runs.values()
    assert kept.status == "FAILED"
    assert mlflow.active_run() is None


def test_wandb_has_metrics_config_and_the_report(wandb: FakeWandb) -> None:
    result = tw.train(small_job(), callbacks=[Wandb(project="mine", mode="offline")])
    run = wandb.run
    assert run is not None
    assert (run.project, run.mode, run.tracked.name) == ("mine", "offline", "efvfl-seed-5")
    assert run.tracked.metrics == curves(result.history)
    assert run.tracked.parameters == parameters(small_job())
    assert run.tracked.artifacts["report.html"].startswith("<!doctype html>")
    assert run.tracked.status == "exit code 0"
    assert run.settings["console"] == "off", "what the process prints is nobody's business"


def test_what_a_library_prints_is_not_taken_for_our_output(
    mlflow: FakeMLflow, capsys: pytest.CaptureFixture[str]
) -> None:
    tw.train(small_job(), callbacks=[MLflow()])
    shown = capsys.readouterr()
    assert (shown.out, "View run at" in shown.err) == ("", True)


def test_a_writer_that_cannot_begin_keeps_the_run_from_starting(
    wandb: FakeWandb, mlflow: FakeMLflow, tmp_path: Path
) -> None:
    wandb.is_logged_in = False
    with pytest.raises(
        tw.errors.BadInput, match=r"cannot write to wandb: api_key not .* to log in\. Nothing was started"
    ):
        tw.train(small_job(), callbacks=[MLflow(), Wandb()], out=tmp_path / "run")
    assert not (tmp_path / "run" / "events.jsonl").exists()
    (kept,) = mlflow.runs.values()  # it had begun, and hears of the end
    assert kept.status == "FAILED"


@pytest.mark.parametrize(("name", "module"), [("mlflow", "mlflow"), ("wandb", "wandb")])
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(tw.errors.BadInput, match=rf"needs {module}: pip install 'thinwire\[{name}\]'"):
        build_writers(name)


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(tw.errors.BadInput, match="did you mean 'tensorboard'"):
        build_writers("tensorbord")
    with pytest.raises(tw.errors.BadInput, match="name one of tensorboard, mlflow, wandb"):
        build_writers(" , ")
    assert [type(writer) for writer in build_writers("tensorboard, TensorBoard")] == [TensorBoard]


def test_to_pandas_is_the_history_a_row_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    result = tw.train(small_job(), callbacks=[])
    frame = result.to_pandas()
    assert list(frame["round"]) == [event["round"] for event in result.history]
    assert list(frame["test.accuracy"]) == [event["test"]["accuracy"] for event in result.history]
    assert list(frame["bytes.up"]) == [event["bytes"]["up"] for event in result.history]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tw.errors.BadInput, match=r"to_pandas\(\) needs pandas: pip install 'thinwire\[pandas\]'"):
        result.to_pandas()


def test_the_command_writes_and_resumes_there_too(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    for more in (["--set", "job.epochs=2"], ["--set", "job.epochs=3", "--resume"]):
        shown = run("train", job, "--out", tmp_path / "run", "--log-to", "tensorboard", *more)
        assert shown.returncode == 0, shown.stderr
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    found = tensorboard_curves(tmp_path / "run" / "tensorboard")
    assert found["train/loss"] == pytest.approx(curves(events)["train/loss"], rel=1e-6)


def test_the_command_refuses_an_unknown_name_before_it_reads_the_job(tmp_path: Path) -> None:
    shown = run("train", tmp_path / "none.toml", "--log-to", "mlflw")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "--log-to: 'mlflw' is not one of tensorboard, mlflow, wandb; did you mean 'mlflow'?" in shown.stderr


# One party of a run over the network ------------------------------------------------------------------------


def test_the_label_party_writes_its_evaluations_and_a_feature_party_its_own_bytes(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}))
    with PartyProcesses() as made_here:
        running = {name: made_here.party(place, name, "--log-to", "tensorboard") for name in place.names}
        summaries = {name: process.summary() for name, process in running.items()}
    found = tensorboard_curves(place.out(LABEL_PARTY) / "tensorboard")
    assert found.keys() == curves(left_events(place)).keys() >= {"test/accuracy", "train/loss", "bytes/up"}
    assert found["test/loss"] == pytest.approx(curves(left_events(place))["test/loss"], rel=1e-6)
    bank = tensorboard_curves(place.out("bank") / "tensorboard")
    assert bank.keys() == {"epoch", "bytes/sent", "bytes/received", "seconds"}
    assert list(bank["bytes/sent"]) == [0, 2, 4, 6], "as often as the label party evaluates"
    assert bank["bytes/sent"][6] == summaries["bank"]["sent_bytes"]


def part(tmp_path: Path) -> tuple[PartyView, Path]:
    place = made(tmp_path, Shape({"method": "svfl"}))
    return read_party_view(place.job, LABEL_PARTY), tmp_path / "runs" / LABEL_PARTY


def test_mlflow_gets_a_party_s_run_with_its_report(mlflow: FakeMLflow, tmp_path: Path) -> None:
    own, folder = part(tmp_path)
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text('{"round": 0, "test": {"loss": 2.0}}\n{"round": 2, "te')
    (folder / "report.html").write_text("the report")
    writers = PartyWriters([MLflow()], own, folder)
    writers.begin()
    for event in ({"round": 0, "test": {"loss": 2.0}}, {"round": 2, "test": {"loss": 1.0}}):
        writers.event(event)
    writers.end({"rounds": 2}, interrupted=False)
    (kept,) = mlflow.runs.values()
    assert (kept.name, kept.status) == ("runs-clinic", "FINISHED")
    assert kept.metrics == {"test/loss": {0: 2.0, 2: 1.0}}
    assert (kept.parameters["party"], kept.parameters["recipe/name"]) == ("clinic", "svfl")
    assert str(tmp_path) not in json.dumps(kept.parameters), "no paths"
    assert kept.artifacts == {"report.html": "the report"}


@pytest.mark.parametrize(("interrupted", "status"), [(True, "KILLED"), (False, "FAILED")])
def test_a_party_s_run_that_does_not_reach_its_end(
    interrupted: bool, status: str, mlflow: FakeMLflow, tmp_path: Path
) -> None:
    own, folder = part(tmp_path)
    writers = PartyWriters([MLflow()], own, folder)
    writers.begin()
    writers.end(None, interrupted)
    (kept,) = mlflow.runs.values()
    assert (kept.status, kept.artifacts) == (status, {})


def test_a_writer_that_cannot_begin_keeps_a_party_from_starting(
    wandb: FakeWandb, mlflow: FakeMLflow, tmp_path: Path
) -> None:
    wandb.is_logged_in = False
    own, folder = part(tmp_path)
    with pytest.raises(tw.errors.BadInput, match="cannot write to wandb: api_key not configured"):
        PartyWriters([MLflow(), Wandb()], own, folder).begin()
    (kept,) = mlflow.runs.values()
    assert kept.status == "FAILED"
