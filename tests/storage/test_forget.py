"""Rows are forgotten: nothing of them is left in a run's folder but the weights, and that is said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import thinwire as tw
from cli.conftest import here  # noqa: F401
from job.small import JOB, ROWS, write_job
from job.tables.test_jobs import aligned
from thinwire.align import read_alignment
from thinwire.base.errors import BadInput
from thinwire.data.prepare import Preparation
from thinwire.data.readers.features import read_id_texts
from thinwire.data.readers.tables import read_cells
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.job_snapshot import save_job
from thinwire.job.party_view import read_party_view
from thinwire.storage.folder_lock import AlreadyRunning, FolderLock
from thinwire.training.erase import erase_rows
from thinwire.training.party.startup import open_party_run
from training.party.parties import Seen, Shape, made, ran

Here = Callable[..., subprocess.CompletedProcess[str]]
WITH_IDS = JOB.replace('name = "bank"\n', 'name = "bank"\nids = { file = "ids.csv", column = "person" }\n').replace(
    'method = "efvfl"\ncompressor = { name = "TopK", fraction = 0.25 }\nlabels = "private"', 'method = "thin"'
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run, with surrogates and worksets in its checkpoints."""
    job = write_job(tmp_path, WITH_IDS)
    (tmp_path / "ids.csv").write_text("person\n" + "".join(f"P{row:03d}\n" for row in range(ROWS)))
    loaded, folder = load_job(job), tmp_path / "run"
    save_job(folder, resolve_job(job), loaded)
    tw.train(loaded, callbacks=[], out=folder)
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def sizes_of_rows(folder: Path) -> list[Path]:
    """Files that hold as many numbers as there are rows, or more: what is kept by row."""
    found = []
    for path in folder.rglob("*.safetensors"):
        header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        if any(shape and shape[0] == ROWS for shape in shapes) or any("memory" in name for name in header):
            found.append(path)
    return found


def test_what_is_kept_by_row_goes_and_the_rest_stays(run: Path) -> None:
    before = {name: (run / name).read_bytes() for name in files(run) if not name.startswith("checkpoints")}
    assert sizes_of_rows(run)  # there is something to forget
    found = erase_rows(run, ids=["P003", " P010 ", "nobody"])
    assert found.rows == [3, 10]
    assert found.asked == 3
    assert [one.path for one in found.removed] == ["checkpoints"]
    assert found.removed[0].bytes > 1000
    assert found.still_in == {str(run.parent / "ids.csv"): 2}
    assert sizes_of_rows(run) == []
    for name, content in before.items():
        assert (run / name).read_bytes() == content or name == "lock"
    line = json.loads((run / "forgotten.jsonl").read_text())
    assert line["rows"] == [3, 10]
    assert "P003" not in (run / "forgotten.jsonl").read_text()
    said = " ".join(found.describe())
    assert "The models were trained on these rows and are unchanged" in said
    assert f"--from {run}" in said
    assert "Other parties hold their own surrogates and messages" in said


def test_a_run_whose_rows_were_forgotten_does_not_go_on_but_another_begins_from_it(run: Path) -> None:
    erase_rows(run, rows=[5])
    job = load_job(run.parent / "job.toml")
    with pytest.raises(
        BadInput, match=r"rows were erased in .* train again without them in a different --out; --from"
    ):
        tw.train(job, callbacks=[], out=run, resume=True)
    bank = dict(np.load(run.parent / "bank.npz"))
    np.savez(run.parent / "bank.npz", x=np.delete(bank["x"], 5, 0), x_test=bank["x_test"])
    for name in ("shop", "clinic", "ids"):
        lines = (run.parent / f"{name}.csv").read_text().splitlines()
        (run.parent / f"{name}.csv").write_text("\n".join(lines[:6] + lines[7:]) + "\n")
    later = load_job(run.parent / "job.toml")
    assert later.rows == ROWS - 1
    assert later.start_from(run).taken == ("bank", "shop", "top")
    tw.train(later, callbacks=[])


def test_twice_is_no_harm_and_files_of_others_are_named(run: Path) -> None:
    erase_rows(run, rows=[1])
    (run / "scores.csv").write_text("row,score\n1,0.5\n")
    again = erase_rows(run, rows=[2])
    assert again.removed == []
    assert again.unknown == ["scores.csv"]
    assert any("thinwire did not write scores.csv" in line for line in again.describe())
    assert len((run / "forgotten.jsonl").read_text().splitlines()) == 2


def test_what_cannot_be_is_refused_and_nothing_is_removed(run: Path, tmp_path: Path) -> None:
    before = files(run)
    with pytest.raises(BadInput, match="name the rows to erase"):
        erase_rows(run)
    with pytest.raises(BadInput, match=rf"row {ROWS} is not one of the training rows .* 0 to {ROWS - 1}"):
        erase_rows(run, rows=[ROWS])
    with pytest.raises(BadInput, match="is not a run folder"):
        erase_rows(tmp_path, rows=[1])
    lock = FolderLock(run)
    lock.acquire()
    with pytest.raises(AlreadyRunning):
        erase_rows(run, rows=[1])
    lock.release()
    assert [name for name in files(run) if not name.startswith("lock")] == [
        name for name in before if not name.startswith("lock")
    ]


def test_a_run_that_has_not_ended_is_given_up_only_when_asked(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path))
    folder = tmp_path / "run"

    def stop(event: dict[str, object]) -> None:
        if event["round"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tw.train(job, callbacks=[stop], out=folder)
    with pytest.raises(BadInput, match=r"has not ended.*--give-up"):
        erase_rows(folder, rows=[1])
    assert (folder / "checkpoints").exists()
    assert [one.path for one in erase_rows(folder, rows=[1], give_up=True).removed] == ["checkpoints"]


def test_a_party_forgets_its_messages_too(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "efvfl", "compressor": "Sign"}, ids=True))
    ran(place)
    for name in place.names:
        folder = place.out(name)
        assert any(file.startswith("sent/") for file in files(folder))
        found = erase_rows(folder, ids=["person-00003", "person-00040"])
        assert found.unknown == []
        left = files(folder)
        assert not [file for file in left if file.startswith(("sent/", "answers/", "checkpoints/"))]
        assert "events.jsonl" in left or name != "clinic"
        assert b"person-" not in b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    with pytest.raises(BadInput, match="rows were erased in"):
        open_party_run(read_party_view(place.job, "bank"), place.out("bank"), Seen().audience())


def test_a_split_leaves_the_rows_that_the_run_trained_on(tmp_path: Path) -> None:
    path, run = aligned(tmp_path), tmp_path / "run"
    job = load_job(path)
    save_job(run, resolve_job(path), job)
    tw.train(job, callbacks=[], out=run)
    ids = [str(one) for one in read_id_texts(tmp_path / "bank.csv", None, "customer")]
    common = len(read_alignment(tmp_path / "bank.alignment"))
    found = erase_rows(run, ids=ids)
    assert found.rows == list(range(job.rows))
    assert job.rows < common < len(ids)
    party = job.parties[0]
    assert isinstance(party.preparation, Preparation)
    every = party.preparation.apply(read_cells(tmp_path / "bank.csv"))
    named = {place: erase_rows(run, ids=[ids[place]]).rows for place in range(0, len(ids), 12)}
    assert 0 < sum(map(len, named.values())) < len(named)
    for place, rows in named.items():
        assert all(torch.equal(every[place], party.features[row]) for row in rows)
    with pytest.raises(BadInput, match=rf"row {job.rows} is not one of the training rows .* 0 to {job.rows - 1}"):
        erase_rows(run, rows=[job.rows])


def test_the_command(run: Path, here: Here) -> None:  # noqa: F811
    listed = run.parent / "gone.txt"
    listed.write_text("P001\n\nP002\n")
    shown = here("forget", run, "--ids", listed, "--rows", "7,9-10", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["rows"] == [1, 2, 7, 9, 10]
    shown = here("forget", run, "--rows", "3")
    assert "it holds no other data about single rows" in shown.stdout
    listed.write_text("\n")
    for wrong in (
        ["--rows", "x"],
        ["--rows", "9-3"],
        ["--rows", "0-999999999999"],
        ["--ids", listed],
        ["--ids", "nowhere"],
        [],
    ):
        shown = here("forget", run, *wrong)
        assert (shown.returncode, shown.stdout) == (2, ""), wrong
