"""Which key opens a folder: named by the job or by THINWIRE_KEY, or remembered; others are refused with a reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from thinwire.base.errors import BadInput, BadState
from thinwire.storage.encrypted_files import PLAIN
from thinwire.storage.encryption_key import BadKey, begin_files, new_key, open_folder, read_key


@pytest.fixture(autouse=True)
def _no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THINWIRE_KEY", raising=False)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    new_key(tmp_path / "run.key")
    return tmp_path / "run.key"


@pytest.fixture
def run(tmp_path: Path, key: Path) -> Path:
    """An encrypted folder with one file in it."""
    begin_files(tmp_path / "run", key).replace(tmp_path / "run" / "private.json", b"secret")
    return tmp_path / "run"


def content(run: Path, key: Path | None = None) -> bytes:
    return open_folder(run, key).read(run / "private.json")


def test_a_folder_without_a_key_is_readable(tmp_path: Path) -> None:
    assert open_folder(tmp_path) is PLAIN
    assert begin_files(tmp_path, None) is PLAIN
    assert not list(tmp_path.iterdir())


def test_the_folder_remembers_where_its_key_is(run: Path) -> None:
    assert content(run) == b"secret"
    assert b"secret" not in (run / "private.json").read_bytes()


def test_a_key_that_has_moved_is_named_by_the_variable(run: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = key.rename(key.with_name("moved.key"))
    with pytest.raises(
        BadKey, match=r"run is encrypted, and its key is not there: .*run\.key\. .* THINWIRE_KEY=FILE"
    ):
        content(run)
    monkeypatch.setenv("THINWIRE_KEY", str(moved))
    assert content(run) == b"secret"


def test_a_key_that_has_moved_is_named_by_the_job_and_then_remembered(run: Path, key: Path) -> None:
    moved = key.rename(key.with_name("moved.key"))
    assert content(run, moved) == b"secret"
    with pytest.raises(BadKey):
        content(run)
    begin_files(run, moved)
    assert content(run) == b"secret"


def test_another_key_is_refused_by_name(run: Path, key: Path) -> None:
    key.unlink()
    new_key(key)
    with pytest.raises(BadKey, match=r"encrypted with another key than that in .*run\.key; .* THINWIRE_KEY=FILE"):
        content(run)
    with pytest.raises(BadKey):
        begin_files(run, key)


def test_the_key_of_another_run_does_not_hide_the_right_one(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_key(tmp_path / "other.key")
    monkeypatch.setenv("THINWIRE_KEY", str(tmp_path / "other.key"))
    assert content(run) == b"secret"


def test_two_folders_of_one_key_do_not_open_each_others_files(run: Path, tmp_path: Path, key: Path) -> None:
    other = tmp_path / "other"
    begin_files(other, key)
    (other / "private.json").write_bytes((run / "private.json").read_bytes())
    with pytest.raises(BadState, match="from another path or run"):
        content(other)
    marker = json.loads((run / "encryption.json").read_text())
    assert marker["check"] != json.loads((other / "encryption.json").read_text())["check"]


def test_a_run_that_began_readable_stays_so(tmp_path: Path, key: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data.json").write_text("{}")
    with pytest.raises(BadInput, match=r"started without encryption and continues that way; remove \[encryption\]"):
        begin_files(tmp_path / "run", key)
    assert not (tmp_path / "run" / "encryption.json").exists()


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"[]", b"\xff", b'{"format": 1, "run": "xyz", "check": "", "key": ""}']
)
def test_a_damaged_marker_is_refused(run: Path, damage: bytes) -> None:
    (run / "encryption.json").write_bytes(damage)
    with pytest.raises(BadState, match=r"encryption\.json is damaged; restore it from a backup"):
        open_folder(run)


def test_a_later_format_is_refused(run: Path) -> None:
    marker = json.loads((run / "encryption.json").read_text())
    (run / "encryption.json").write_text(json.dumps(marker | {"format": 2}))
    with pytest.raises(BadState, match="has format 2, this version reads 1; use the version that wrote it"):
        open_folder(run)


# Key files --------------------------------------------------------------------------------------------------------


def test_a_new_key_is_random_private_and_never_put_over_another(tmp_path: Path) -> None:
    new_key(tmp_path / "a")
    new_key(tmp_path / "b")
    assert len(read_key(tmp_path / "a")) == 32
    assert read_key(tmp_path / "a") != read_key(tmp_path / "b")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadKey, match="already exists, and runs may need it"):
        new_key(tmp_path / "a")
    with pytest.raises(BadKey, match="cannot be written"):
        new_key(tmp_path / "nowhere" / "a")


@pytest.mark.parametrize("text", [bytes(range(32)), bytes(range(32)).hex().encode(), b" %s\r\n" % (b"0F" * 32)])
def test_a_key_is_32_bytes_or_64_hex_digits(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(text)
    file.chmod(0o600)
    assert read_key(file) in (bytes(range(32)), b"\x0f" * 32)


@pytest.mark.parametrize("text", [b"", b"short", b"x" * 64, b"0f" * 31, b"0f" * 33, b"\xff" * 64])
def test_what_is_no_key_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(text)
    file.chmod(0o600)
    with pytest.raises(BadKey, match="is not a key: a key is 32 bytes, or 64 hex digits"):
        read_key(file)


def test_a_key_that_others_may_read_is_refused(run: Path, key: Path) -> None:
    key.chmod(0o640)
    with pytest.raises(BadKey, match=r"users other than its owner can read .*mode 0640.*chmod 600"):
        content(run)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(BadKey, match="is not a regular file"):
        read_key(tmp_path / "pipe")
    with pytest.raises(BadKey, match=r"is not a regular file|cannot be read"):
        read_key(tmp_path)


def test_a_folder_in_a_keys_place_leaves_nothing_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BadKey, match="cannot be read: Is a directory"):
        read_key(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_a_job_that_names_no_key_file_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BadKey, match=r"encryption\.key: there is no file .*none\.key; `thinwire key"):
        begin_files(tmp_path / "run", tmp_path / "none.key")
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["data.json", "private.json", "events.jsonl"])
def test_a_pipe_or_a_device_among_the_files_is_not_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert open_folder(tmp_path) == PLAIN
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for file in (name, "zeros"):
        with pytest.raises(BadState, match=f"{file} is not a regular file"):
            PLAIN.read(tmp_path / file)
