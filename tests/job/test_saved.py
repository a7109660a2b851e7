"""A run directory remembers the job and the data that its run began with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from job.small import write_job
from thinwire.base.errors import BadInput
from thinwire.job.job_snapshot import digest_tables, require_same_text, save_text
from thinwire.job.party_view import PartyView, read_party_view


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_job(tmp_path)


@pytest.fixture
def run(path: Path) -> Path:
    folder = path.parent / "run"
    own = read_party_view(path, "bank")
    save_text(folder, own.format_document(), digests(own))
    return folder


def digests(own: PartyView) -> dict[str, str]:
    return digest_tables(own.me, own.load_features())


@pytest.mark.parametrize(
    "setting",
    [
        "job.epochs=5",
        "job.device='cpu'",
        "job.memory_limit_mb=1",
        "network.address='elsewhere:1'",
        "network.certs='new'",
        "party.bank.key='new.key'",
        "party.bank.certificate_name='bank.example'",
        "party.bank.approved='000000000000'",
        "party.bank.features.file='moved.npz'",
        "party.shop.model.width=9",  # no matter of bank's
    ],
)
def test_a_run_goes_on_where_only_this_has_changed(path: Path, run: Path, setting: str) -> None:
    (path.parent / "moved.npz").write_bytes((path.parent / "bank.npz").read_bytes())
    own = read_party_view(path, "bank", [setting])
    require_same_text(run, own.format_document(), digests(own))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("job.seed=1", "job.seed is 1, but the run in"),
        ("recipe.compressor.fraction=0.5", "recipe.compressor.fraction is 0.5, but the run in"),
        ("party.bank.model.width=5", "party.bank.model.width is 5"),
        ("party.bank.features.key='x_test'", "party.bank.features.key is 'x_test'"),
        ("party.shop.name='kiosk'", "party.kiosk.name is 'kiosk'"),
    ],
)
def test_all_else_makes_it_another_run(path: Path, run: Path, setting: str, message: str) -> None:
    own = read_party_view(path, "bank", [setting])
    with pytest.raises(BadInput, match=re.escape(message)):
        require_same_text(run, own.format_document(), {})


def test_changed_data_is_noticed(path: Path, run: Path) -> None:
    own = read_party_view(path, "bank")
    with pytest.raises(BadInput, match=r"bank\.features has changed since the run in .* began; restore the data"):
        require_same_text(run, own.format_document(), digests(own) | {"bank.features": "0"})


@pytest.mark.parametrize("text", ["[1]", "[" * 100_000, "nonsense"])
def test_digests_that_cannot_be_read_are_those_of_other_data(path: Path, run: Path, text: str) -> None:
    (run / "data.json").write_text(text)
    own = read_party_view(path, "bank")
    with pytest.raises(BadInput, match="has changed since the run in"):
        require_same_text(run, own.format_document(), digests(own))
