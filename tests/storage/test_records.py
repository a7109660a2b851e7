"""Encrypted files: what is read is what was written, or nothing is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.storage import encrypted_files
from thinwire.storage.encrypted_files import (
    HEADER_SIZE,
    PLAIN,
    TAG,
    DamagedFile,
    Encrypting,
    Files,
    RunKey,
    decrypt_records,
    map_content,
)

KEY = RunKey(b"k" * 32, b"r" * 16)
SMALL = 16  # bytes a record, so that files have several
WHERE = Path("run/file")


@pytest.fixture(autouse=True)
def _small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted_files, "RECORD", SMALL)


def written(pieces: list[bytes], key: RunKey = KEY, name: str = "a") -> bytes:
    out = io.BytesIO()
    encrypting = Encrypting(lambda part: (out.write(part), None)[1], key, name)
    for piece in pieces:
        encrypting.write(piece)
    encrypting.finish()
    return out.getvalue()


def read(data: bytes, key: RunKey = KEY, name: str = "a") -> bytes:
    return b"".join(decrypt_records(io.BytesIO(data).read, key, name, WHERE))


@given(st.lists(st.binary(max_size=3 * SMALL), max_size=6))
def test_what_is_read_is_what_was_written(pieces: list[bytes]) -> None:
    assert read(written(pieces)) == b"".join(pieces)


@given(st.binary(max_size=4 * SMALL), st.data())
def test_a_changed_bit_anywhere_is_noticed(content: bytes, data: st.DataObject) -> None:
    file = bytearray(written([content]))
    place = data.draw(st.integers(0, 8 * len(file) - 1))
    file[place // 8] ^= 1 << place % 8
    with pytest.raises(DamagedFile, match="run/file is"):
        read(bytes(file))


@pytest.mark.parametrize("length", [0, 1, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL])
def test_a_file_that_is_cut_off_anywhere_or_goes_on_is_noticed(length: int) -> None:
    file = written([b"x" * length])
    assert len(file) == HEADER_SIZE + length + TAG * max(1, -(-length // SMALL))
    for end in range(len(file)):
        with pytest.raises(DamagedFile):
            read(file[:end])
    with pytest.raises(DamagedFile):
        read(file + b"\0")


def test_records_that_change_places_or_files_are_noticed() -> None:
    one, other = written([bytes(range(4 * SMALL))]), written([bytes(range(4 * SMALL))])
    size = SMALL + TAG
    first, second = slice(HEADER_SIZE, HEADER_SIZE + size), slice(HEADER_SIZE + size, HEADER_SIZE + 2 * size)
    swapped = one[:HEADER_SIZE] + one[second] + one[first] + one[second.stop :]
    dropped = one[:HEADER_SIZE] + one[first] + one[second.stop :]
    mixed = one[:HEADER_SIZE] + one[first] + other[second] + one[second.stop :]
    for damaged in (swapped, dropped, mixed):
        with pytest.raises(DamagedFile):
            read(damaged)


def test_another_name_run_or_key_opens_nothing() -> None:
    file = written([b"content"])
    for key, name in ((KEY, "b"), (RunKey(KEY.secret, b"s" * 16), "a"), (RunKey(b"l" * 32, KEY.run), "a")):
        with pytest.raises(DamagedFile, match="from another path or run"):
            read(file, key, name)


def test_no_two_files_are_alike_and_no_key_is_shown() -> None:
    assert written([b"content"]) != written([b"content"])
    assert "kkk" not in repr(KEY)
    assert b"content" not in written([b"content"])


def test_a_readable_file_in_an_encrypted_run_is_refused_and_the_other_way_round(tmp_path: Path) -> None:
    encrypted, plain = Files(tmp_path, KEY), PLAIN
    plain.replace(tmp_path / "model", b"weights")
    with pytest.raises(DamagedFile, match="is not encrypted, as this run's files are"):
        encrypted.read(tmp_path / "model")
    encrypted.replace(tmp_path / "model", b"weights")
    assert encrypted.read(tmp_path / "model") == b"weights"
    with pytest.raises(DamagedFile, match=r"encryption\.json, which describes how, is missing"):
        plain.read(tmp_path / "model")


def test_both_kinds_of_files_read_what_they_wrote_in_pieces(tmp_path: Path) -> None:
    for files in (PLAIN, Files(tmp_path, KEY)):
        path = tmp_path / f"encrypted {files.is_encrypted}"
        with files.new(path) as write:
            write(b"0123456789" * 5)
            write(memoryview(b"abc"))
        assert path.stat().st_mode & 0o777 == 0o600
        with files.open_file(path) as file:
            pieces = b"".join(iter(lambda: file.read(7), b""))
            assert pieces == bytes(map_content(file)) == b"0123456789" * 5 + b"abc"
