"""An alignment on disk."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from align.talking import LABEL, aligned
from thinwire.align import Alignment, read_alignment, write_alignment
from thinwire.base.errors import BadInput, ThinwireError
from thinwire.storage.atomic_file import WriteFailed

IDS = {"bank": [1, 2, 3, 4], "0" * 70: [3, 4, 5, 6, 7, 8], LABEL: [2, 3, 4, 5, 6, 9]}


@pytest.fixture(scope="module")
def found() -> dict[str, Alignment]:
    return aligned(IDS)


@pytest.mark.parametrize("party", IDS)
def test_what_is_written_is_read(found: dict[str, Alignment], party: str, tmp_path: Path) -> None:
    path = tmp_path / "alignment.safetensors"
    for _ in range(2):  # over an older one too
        write_alignment(path, found[party])
        assert read_alignment(str(path)) == found[party]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [path.name]
    assert load_file(path)["rows"].tolist() == found[party].rows.tolist()


def test_no_byte_can_change_unnoticed(found: dict[str, Alignment], tmp_path: Path) -> None:
    path = tmp_path / "alignment.safetensors"
    write_alignment(path, found["bank"])
    data = path.read_bytes()
    for place in range(len(data)):
        for flip in (1, 0x20, 0x80):
            path.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            with pytest.raises(BadInput, match=r"alignment\.safetensors: .*(copy|align again)"):
                read_alignment(path)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(BadInput):
            read_alignment(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(BadInput):
        read_alignment(path)


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any], rows: Any = None) -> None:
    """The file with other fields and a checksum that fits, as a stranger would write it."""
    tensors = load_file(path)
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    held = json.loads(metadata["alignment"])
    change(held)
    tensors = tensors if rows is None else {"rows": np.array(rows)}
    zeros = "0" * 64
    data = save(tensors, {"alignment": json.dumps(held), "sha256": zeros})
    sealed = f'"sha256":"{sha256(data).hexdigest()}"'
    path.write_bytes(data.replace(f'"sha256":"{zeros}"'.encode(), sealed.encode()))


@pytest.mark.parametrize(
    ("change", "rows", "says"),
    [
        ({"format": 2}, None, "which this version reads: format"),
        ({"me": "mill"}, None, "names that do not match the parties"),
        ({"label_party": 5}, None, "label_party"),
        ({"parties": ["bank"]}, None, "parties"),
        ({"parties": ["bank", "bank", LABEL]}, None, "names that do not match"),
        ({"digest": "abc"}, None, "digest"),
        ({"ids_digest": "A" * 64}, None, "ids_digest"),
        ({"sizes": {"bank": -1}}, None, "sizes.bank"),
        ({"sizes": {"bank": 2.5}}, None, "sizes.bank"),
        ({"sizes": {LABEL: 4}}, None, "names that do not match"),
        ({"pairwise": {"bunk": 4}}, None, "names that do not match"),
        ({"when": "2024-01-01T00:00:00"}, None, "when"),
        ({"when": "yesterday"}, None, "when"),
        ({"more": 1}, None, "more"),
        ({}, [0, 4], r"not distinct numbers from 0 to 3"),
        ({}, [-1, 2], "not distinct numbers"),
        ({}, [2, 2], "not distinct numbers"),
        ({}, [0.0, 1.0], r"its rows are float64 \(2,\), expected int64 of 1 to 4"),
        ({}, [[0, 1]], r"its rows are int64 \(1, 2\)"),
        ({}, [0, 1, 2, 3, 0], r"its rows are int64 \(5,\)"),
    ],
)
def test_what_cannot_be_is_refused(
    found: dict[str, Alignment], change: dict[str, Any], rows: Any, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "alignment.safetensors"
    write_alignment(path, found["bank"])
    rewritten(path, lambda _: None)
    assert read_alignment(path) == found["bank"]  # the way of rewriting is right
    rewritten(path, lambda held: held.update(change), rows)
    with pytest.raises(BadInput, match=says):
        read_alignment(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(BadInput, match=r"No such file.*thinwire align"):
        read_alignment(path)
    with pytest.raises(BadInput, match="Is a directory"):
        read_alignment(tmp_path)
    surrogate = b'{"__metadata__":{"sha256":"\\ud800"}}'
    for data in (
        b"",
        bytes(100),
        b"\xff" * 100,
        b"not a file of ours",
        save({"rows": np.arange(3)}),
        save({"rows": np.arange(3)}, {"sha256": "0" * 64}),
        len(surrogate).to_bytes(8, "little") + surrogate,
        (10**6).to_bytes(8, "little") + b"[" * 10**6,
    ):
        path.write_bytes(data)
        with pytest.raises(BadInput, match="align again"):
            read_alignment(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    found: dict[str, Alignment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "alignment.safetensors"
    write_alignment(path, found["bank"])
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for call in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(f"thinwire.net.links.outgoing_log.os.{call}", full)
            with pytest.raises(WriteFailed, match=r"alignment\.safetensors: could not write .* bytes: No space left"):
                write_alignment(path, replace(found["bank"], digest="0" * 64))
        assert os.listdir(tmp_path) == [path.name]
        assert path.read_bytes() == before
    with pytest.raises(ThinwireError, match="bytes: No such file"):
        write_alignment(tmp_path / "no" / "where", found["bank"])
