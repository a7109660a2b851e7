"""A run's folder that was brought back from an older copy: predictions repeat no noise and lose no charge."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import thinwire as tw
from predict.halves import asked, predicting
from predict.test_load_run import X, job
from predict.test_same_as_simulated import EVERY
from processes import until
from thinwire.base.errors import BadState
from thinwire.storage.encryption_key import new_key
from training.party.parties import made, ran


@pytest.fixture(params=["readable", "encrypted"])
def noisy(request: pytest.FixtureRequest, tmp_path: Path) -> tw.Job:
    """A job that was trained in the folder run."""
    made = job(tw.methods.pbm(16, 0.2), "sum")
    if request.param == "encrypted":
        new_key(tmp_path / "run.key")
        made.encryption_key = tmp_path / "run.key"
    tw.train(made, callbacks=[], out=tmp_path / "run")
    return made


def test_a_restored_folder_never_draws_the_same_noise_again(noisy: tw.Job, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    first = tw.load_run(tmp_path / "run", job=noisy).predict(X)
    again = tw.load_run(tmp_path / "copy", job=noisy).predict(X)  # the first question once more
    assert not torch.equal(first, again)


@pytest.mark.parametrize("left", [2, 1, 0])
def test_charges_that_were_cut_off_or_removed_are_missed(noisy: tw.Job, tmp_path: Path, left: int) -> None:
    run = tw.load_run(tmp_path / "run", job=noisy)
    for _ in range(3):
        run.predict(X)
    log = tmp_path / "run" / "charges-b.jsonl"
    held = log.read_bytes()
    log.write_bytes(b"".join(held.splitlines(keepends=True)[:left]))
    for again in (run, tw.load_run(tmp_path / "run", job=noisy)):
        with pytest.raises(BadState, match=rf"charges-b.jsonl holds {left} charges .* has held 3: its end"):
            again.predict(X)
    log.write_bytes(held)
    run.predict(X)


def test_a_party_that_comes_back_from_an_older_copy_answers_nothing(tmp_path: Path) -> None:
    """The label party remembers which questions it was answered, whatever the party's own folder says."""
    place = made(tmp_path, EVERY["pbm"])
    ran(place)
    folders = {name: place.out(name) for name in place.names}
    old = Path(shutil.copytree(folders["bank"], tmp_path / "old"))
    with predicting(place, folders) as (asking, _):
        asked(asking, torch.arange(4))
    with predicting(place, {**folders, "bank": old}) as (asking, _):
        until(lambda: "bank" in asking.refused)
        assert "'bank' was started from an older copy of its run's folder" in str(asking.refused["bank"])
    assert not [line for line in (old / "charges.jsonl").read_text().splitlines() if "prediction" in line]
    with predicting(place, folders) as (asking, _):
        asked(asking, torch.arange(4))
