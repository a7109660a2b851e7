"""Files as they come: the right ones are read, the wrong ones are named with column and row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thinwire.base.errors import BadInput
from thinwire.data.readers.features import read_features, read_id_texts, read_labels
from thinwire.data.readers.tables import read_cells
from thinwire.data.readers.text_format import TextFormat

GOOD = b"a,b,y\n1,2.5,0\n3,-4e-1,1\n"


def written(folder: Path, name: str, content: bytes) -> Path:
    file = folder / name
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD,
        GOOD.rstrip(b"\n"),
        GOOD.replace(b"\n3", b"\n\n3"),
        b'"a","b","y"\n1,2.5,0\n3,-4e-1,1\n',
    ],
    ids=["plain", "CRLF", "byte order mark", "no last newline", "empty line", "quoted names"],
)
def test_csv_files_that_are_fine(tmp_path: Path, content: bytes) -> None:
    file = written(tmp_path, "t.csv", content)
    features = read_features(file, columns=["a", "b"])
    assert features.names == ("a", "b")
    assert features.array.dtype == np.float32
    assert features.array.tolist() == np.array([[1, 2.5], [3, -0.4]], dtype=np.float32).tolist()
    labels = read_labels(file, column="y")
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 1]


def test_all_columns_in_their_order_and_all_but_some(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", GOOD)
    assert read_features(file).names == ("a", "b", "y")
    assert read_features(file, all_but=["y"]).names == ("a", "b")
    assert read_features(file, columns=["b", "a"]).array[0].tolist() == [2.5, 1]
    semicolons = written(tmp_path, "s.csv", GOOD.replace(b",", b";"))
    assert read_features(semicolons, form=TextFormat(";")).names == ("a", "b", "y")


def test_labels_that_are_not_whole_numbers_stay_floats(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", b"y\n0.5\n1\n")
    assert read_labels(file, column="y").tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "t.csv is empty"),
        (b"a,b\n", "has a header, but no rows"),
        (b"a,b\n1,2\n3\n", "line 3 has 1 columns, but the header has 2"),
        (b"a,b\n\n1,2\n3,4,5\n", "line 4 has 3 columns, but the header has 2"),
        (b"a,b\n1,2\n3,\x004\n", "line 3 holds a NUL byte"),
        ("a,b\n1,2\n".encode("utf-16"), 'is UTF-16; set encoding = "utf-16" next to the file'),
        (b"a,b\n1,\xff\n", "line 2 holds the byte 0xFF (byte 6 of the file), which is not UTF-8; set encoding = "),
        (b"\xff\xff,b\n1,2\n", "line 1 holds the byte 0xFF (byte 0 of the file), which is not UTF-8"),
        (b"a,b\n" + b"1,2\n" * 9999 + b"1,\xe9\n", "line 10001 holds the byte 0xE9 (byte 40002 of the file)"),
        (b"a;b\n1;2\n", "but semicolons: 'a;b'; set delimiter = ';'"),
        (b"a\tb\n1\t2\n", "but tabs"),
        (b"1,2\n3,4\n", "the first line holds numbers; it must be a header with the column names"),
        (b"a,a\n1,2\n", "the column name 'a' appears twice"),
        (b"a,b\n1,2\n3,four\n5,6\n", "line 3, column 'b' holds 'four', not a number"),
        (b"a,b\n1,2\n\n3,1_000\n", "line 4, column 'b' holds '1_000', not a number"),
        (b"a,b\n1,2\n3,\n", "line 3, column 'b' is missing or not a number"),
        (b"a,b\n1,2\n3,NaN\n", "line 3, column 'b' is missing or not a number"),
        (b"a,b\n1,2\n3,inf\n", "column 'b', row 2 holds infinity"),
        (b"a,b\n1,2\n3,1e39\n", "column 'b', row 2 holds infinity, or a number too large for float32"),
    ],
)
def test_csv_files_that_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = written(tmp_path, "t.csv", content)
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        read_features(file)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-le"])
def test_any_encoding_is_read_if_it_is_said(tmp_path: Path, encoding: str) -> None:
    file = written(tmp_path, "t.csv", "größe,ort\n1,Genève\n\n2,Bern\n3,?\n".encode(encoding))
    form = TextFormat(encoding=encoding)
    assert read_features(file, columns=["größe"], form=form).array.tolist() == [[1], [2], [3]]
    assert read_id_texts(file, column="ort", form=form) == ["Genève", "Bern", "?"]
    cells = read_cells(file, form=form)
    assert (cells.names, cells.where(1)) == (("größe", "ort"), "line 4")


def test_a_byte_that_is_not_of_the_encoding_is_found(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", "a,b\n1,é\n".encode())
    with pytest.raises(BadInput, match=r"line 2 holds the byte 0xC3 \(byte 6 of the file\), which is not ASCII"):
        read_cells(file, form=TextFormat(encoding="ascii"))
    with pytest.raises(BadInput, match=r"which is not UTF-16-LE|not UTF-16-LE text"):
        read_cells(written(tmp_path, "t.csv", b"a,b\n1,2\n3"), form=TextFormat(encoding="utf-16-le"))


@pytest.mark.parametrize(
    ("content", "form"),
    [
        ("a;b\n1234,5;-2\n3;,5\n", TextFormat(";", decimal=",")),
        ('a,b\n"1234,5",-2\n3,"0,5"\n', TextFormat(decimal=",")),
        ("a;b\n1.234,5;-2\n3;5e-1\n", TextFormat(";", decimal=",", thousands=".")),
        ('a,b\n"1,234.5",-2\n3,.5\n', TextFormat(thousands=",")),
        ("a|b\n1\u2019234.5| -2\n3|0.5\n", TextFormat("|", thousands="'")),
        ("a\tb\n1\u202f234,5\t-2\n3\t0,5\n", TextFormat("\t", decimal=",", thousands=" ")),
    ],
)
def test_numbers_as_other_countries_write_them(tmp_path: Path, content: str, form: TextFormat) -> None:
    file = written(tmp_path, "t.csv", content.encode())
    assert read_features(file, form=form).array.tolist() == [[1234.5, -2], [3, 0.5]]
    assert read_labels(file, column="a", form=form).tolist() == [1234.5, 3]


@pytest.mark.parametrize(
    ("content", "form", "message"),
    [
        ("a;b\n1,5;2\n\n3;4.5\n", TextFormat(";", decimal=","), "line 4, column 'b' holds '4.5', not a number"),
        ("a\n1.234\n1.5\n", TextFormat(decimal=",", thousands="."), "line 3, column 'a' holds '1.5', not a number"),
        ("a\n1\nold\n", TextFormat(thousands=","), "line 3, column 'a' holds 'old', not a number"),
        ("a,b\n1,\n", TextFormat(thousands="'"), "line 2, column 'b' is missing or not a number"),
    ],
)
def test_cells_that_are_no_numbers_in_the_files_own_format(
    tmp_path: Path, content: str, form: TextFormat, message: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        read_features(written(tmp_path, "t.csv", content.encode()), form=form)


@pytest.mark.parametrize("name", ["no.csv", "no.npz", "no.parquet"])
def test_a_missing_file_and_a_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_features(tmp_path / name, "x" if name.endswith("npz") else None)
    (tmp_path / name).mkdir()
    with pytest.raises(BadInput, match="is a folder, not a file"):
        read_features(tmp_path / name, "x" if name.endswith("npz") else None)


def test_wrong_columns_and_suffixes(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", GOOD)
    with pytest.raises(BadInput, match="there is no column 'bb'; the columns are 'a', 'b', 'y'; did you mean 'b'"):
        read_features(file, columns=["bb"])
    with pytest.raises(BadInput, match="there is no column 'z'"):
        read_features(file, all_but=["z"])
    with pytest.raises(BadInput, match="no column is left"):
        read_features(file, all_but=["a", "b", "y"])
    with pytest.raises(BadInput, match="names one column twice"):
        read_features(file, columns=["a", "a"])
    with pytest.raises(BadInput, match="name the column that holds the labels"):
        read_labels(file)
    with pytest.raises(BadInput, match=r"'key' does not fit \.csv: keys are for NPZ files"):
        read_features(file, key="x")
    with pytest.raises(BadInput, match=r"cannot read '\.xls'; supported formats: \.npz, \.csv, \.parquet"):
        read_features(written(tmp_path, "t.xls", b"1"))


# NPZ ------------------------------------------------------------------------------------------------------


def test_npz_arrays_of_any_number_type(tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    np.savez(
        file, x=np.arange(24, dtype=np.uint8).reshape(2, 3, 4), line=np.array([1.0, 2.0]), y=np.array([[1], [0]])
    )
    assert read_features(file, "x").array.shape == (2, 3, 4)
    assert read_features(file, "x").array.dtype == np.float32
    assert read_features(file, "line").array.shape == (2, 1)
    assert read_labels(file, "y").tolist() == [1, 0]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([1, "a"], dtype=object), "'x' is an array of Python objects, which thinwire never loads"),
        (np.array(["a", "b"]), "'x' holds <U1, not numbers"),
        (np.array([1j]), "'x' holds complex128, not numbers"),
        (np.zeros((0, 3)), "'x' has shape (0, 3), which has no rows"),
        (np.array(3.0), "'x' has shape (), which has no rows"),
        (np.array([[1.0, 2], [3, np.nan]]), "'x', row 2, place 2 holds NaN"),
        (np.array([[1.0], [1e300]]), "'x', row 2, place 1 holds infinity"),
    ],
)
def test_npz_arrays_that_are_refused(tmp_path: Path, array: Any, message: str) -> None:
    file = tmp_path / "t.npz"
    np.savez(file, x=array)
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        read_features(file, "x")
    assert str(file) in str(refused.value)


def test_npz_keys(tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    np.savez(file, train=np.ones((2, 2)), test=np.ones(2))
    with pytest.raises(BadInput, match="there is no 'trian'; the file holds 'train', 'test'; did you mean 'train'"):
        read_features(file, "trian")
    with pytest.raises(BadInput, match="name the array to read"):
        read_features(file)
    with pytest.raises(BadInput, match=r"'columns' does not fit \.npz"):
        read_features(file, "train", columns=["a"])
    with pytest.raises(BadInput, match=r"labels are one number per row"):
        read_labels(file, "train")
    np.savez(file, y=np.array([0, np.nan]))
    with pytest.raises(BadInput, match="'y', row 2 holds NaN"):
        read_labels(file, "y")


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    for content in (b"hello", b"PK\x03\x04 not really", b"\x80\x04\x95pickle"):
        with pytest.raises(BadInput, match="not an NPZ file"):
            read_features(written(tmp_path, "t.npz", content), "x")
    with pytest.raises(BadInput, match="is empty"):
        read_features(written(tmp_path, "t.npz", b""), "x")
    with file.open("wb") as opened:
        np.save(opened, np.ones(3))
    with pytest.raises(BadInput, match="a single array, not an NPZ file"):
        read_features(file, "x")
    np.savez_compressed(file, x=np.random.default_rng(0).random((200, 20)))
    damaged = bytearray(file.read_bytes())
    damaged[2000:2100] = bytes(100)
    with pytest.raises(BadInput, match="'x' cannot be read"):
        read_features(written(tmp_path, "t.npz", bytes(damaged)), "x")


# Parquet --------------------------------------------------------------------------------------------------


def test_parquet(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1, 2], "b": [0.5, None], "c": ["x", "y"], "d": [True, False]}), file)
    assert read_features(file, columns=["a", "d"]).array.tolist() == [[1, 1], [2, 0]]
    assert read_labels(file, column="d").tolist() == [1, 0]
    for columns, message in (
        (["b"], "row 2, column 'b' is missing"),
        (["c"], "column 'c' holds string, not numbers"),
        (["e"], "there is no column 'e'"),
    ):
        with pytest.raises(BadInput, match=message):
            read_features(file, columns=columns)
    with pytest.raises(BadInput, match="not a Parquet file"):
        read_features(written(tmp_path, "u.parquet", b"hello"))
    pq.write_table(pa.table({"a": pa.array([], pa.float32())}), file)
    with pytest.raises(BadInput, match="but no rows"):
        read_features(file)
