"""Where a job file's large tables live: a matter of each party's own machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import thinwire as tw
from job.small import write_job
from thinwire.base.errors import BadInput
from thinwire.job.job_loader import load_job
from thinwire.job.party_view import read_party_view


def test_a_job_file_says_how_much_may_be_in_memory_and_where_the_rest_goes(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    (tmp_path / "disk").mkdir()
    assert load_job(path).storage == tw.Storage()
    job = load_job(path, ["job.memory_limit_mb=0.5", "job.scratch='disk'"])
    assert job.storage == tw.Storage(1 << 19, tmp_path / "disk")


def test_parties_need_not_agree_on_it(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    here, there = read_party_view(path, "bank"), read_party_view(path, "bank", ["job.memory_limit_mb=1"])
    assert here.agreement() == there.agreement()
    assert there.settings.storage == tw.Storage(1 << 20)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"job\.scratch.*nowhere does not exist"):
        load_job(write_job(tmp_path), ["job.scratch='nowhere'"])


def test_less_than_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"job\.memory_limit_mb"):
        load_job(write_job(tmp_path), ["job.memory_limit_mb=-1"])
