"""Files that are not there: one message that says what, where, whose and why; or a download that is whole."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lab.datasets.layouts import cifar, digits, tar_gz
from thinwire.base.errors import BadInput, BadParameter
from thinwire.lab.datasets import DATA_SETS, CifarSet, DigitSet, Scale, load_split
from thinwire.lab.datasets.dataset_files import VARIABLE, Download, fetch

NAMES = (
    *("mnist", "fashion_mnist", "cifar10", "cifar100", "modelnet10", "imagenet100", "criteo", "avazu", "movielens"),
    *("mimic3", "physionet2012", "credit_card", "bank_marketing", "covtype"),
)
DOWNLOADABLE = {"mnist", "fashion_mnist", "cifar10", "cifar100"}


def test_the_names() -> None:
    assert tuple(DATA_SETS) == NAMES
    assert all(data_set.name == name for name, data_set in DATA_SETS.items())


@pytest.mark.parametrize("name", NAMES)
def test_missing_files_are_said_in_one_message(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_split(name, folder=tmp_path)
    message = str(refused.value)
    assert "\n" not in message
    assert f"in {tmp_path}" in message
    assert "Get it from http" in message
    assert ("download=True" in message) == (name in DOWNLOADABLE)
    assert ("thinwire does not download it: " in message) == (name not in DOWNLOADABLE)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_folder_what_has_to_be_in_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(BadInput, match="no data folder: give --data DIR") as refused:
        load_split(name)
    message = str(refused.value)
    source = DATA_SETS[name].source
    assert "\n" not in message
    assert all(part in message for part in (source.title, source.page, *source.files))
    with pytest.raises(BadInput) as not_there:
        load_split(name, folder=tmp_path)
    first = Path(source.files[0])
    assert f"there is no {first.name} in {tmp_path / first.parent}" in str(not_there.value)


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(tmp_path / "mnist")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(BadInput, match=r"no data folder: give --data DIR, folder=\.\.\., or set THINWIRE_DATA"):
        load_split("mnist")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert len(load_split("mnist").labels) == 20


def test_one_of_four_files_is_missing(tmp_path: Path) -> None:
    digits(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(BadInput, match=r"MNIST: there is no t10k-labels-idx1-ubyte.gz in .*mnist \(or mnist/t10k"):
        load_split("mnist", folder=tmp_path)


def test_wrong_names_and_settings(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match=r"there is no data set 'minst'; .* did you mean 'mnist'"):
        load_split("minst", folder=tmp_path)
    with pytest.raises(BadParameter, match="criteo: scale is for pictures"):
        load_split("criteo", folder=tmp_path, scale=Scale.UNIT)


def test_loading_imports_no_pandas(tmp_path: Path) -> None:
    digits(tmp_path / "mnist")
    code = (
        "import sys; from pathlib import Path; from thinwire.lab.datasets import load_split; "
        f"load_split('mnist', folder=Path({str(tmp_path)!r})); "
        "print('torch' in sys.modules, {'pandas', 'sklearn', 'PIL', 'pickle_compat'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "True set()"


# Downloads, from a server of our own ----------------------------------------------------------------------


@dataclass
class Shop:
    """What a server hands out, and what was asked of it."""

    files: dict[str, bytes]
    base: str = ""
    asked: list[str] = field(default_factory=list)
    announced: dict[str, int] = field(default_factory=dict)  # a length that is not true


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Shop]:
    shop = Shop(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            shop.asked.append(name)
            if name not in shop.files:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(shop.announced.get(name, len(shop.files[name]))))
            self.end_headers()
            self.wfile.write(shop.files[name])

        def log_message(self, *_: object) -> None:
            """A test needs no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    shop.base = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield shop
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def offered(shop: Shop, name: str) -> Download:
    content = shop.files[name]
    return Download(shop.base + name, len(content), hashlib.md5(content, usedforsecurity=False).hexdigest())


def files_under(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def shop_files(folder: Path) -> dict[str, bytes]:
    digits(folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_mnist_is_downloaded_only_when_asked_and_only_once(tmp_path: Path) -> None:
    files = shop_files(tmp_path / "shop")
    folder = tmp_path / "data"
    with serving(files) as shop:
        original = DATA_SETS["mnist"]
        assert isinstance(original, DigitSet)
        local = replace(original, downloads=tuple((name, offered(shop, name)) for name, _ in original.downloads))
        with pytest.raises(BadInput, match="download=True"):
            load_split(local, folder=folder)
        assert not shop.asked
        first = load_split(local, folder=folder, download=True)
        second = load_split(local, folder=folder, download=True)
        assert sorted(shop.asked) == sorted(files)
    assert files_under(folder) == sorted(f"mnist/{name}" for name in files)
    assert all((folder / "mnist" / name).read_bytes() == content for name, content in files.items())
    assert first.labels.tolist() == second.labels.tolist() == load_split("mnist", folder=folder).labels.tolist()


def test_cifar_is_read_from_the_archive_that_was_downloaded(tmp_path: Path) -> None:
    original = DATA_SETS["cifar100"]
    assert isinstance(original, CifarSet)
    archive = tar_gz({f"cifar-100-binary/{name}.bin": cifar(2, 10, 0) for name in ("train", "test")})
    with serving({"cifar-100-binary.tar.gz": archive}) as shop:
        local = replace(original, archive=offered(shop, "cifar-100-binary.tar.gz"))
        assert len(load_split(local, folder=tmp_path, download=True).labels) == 10
    assert files_under(tmp_path) == ["cifar100/cifar-100-binary.tar.gz"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("other bytes", "the download has MD5"),
        ("too short", "ended after 90 of 100 bytes"),
        ("too long", "sends more than the 100 bytes of this file"),
        ("broken off", "IncompleteRead|ended after 90 of 100"),
        ("not there", "Not Found"),
    ],
)
def test_a_download_is_whole_or_not_there(tmp_path: Path, change: str, message: str) -> None:
    with serving({"x.gz": bytes(100)}) as shop:
        wanted = offered(shop, "x.gz")
        match change:
            case "other bytes":
                shop.files["x.gz"] = b"\1" * 100
            case "too short":
                shop.files["x.gz"] = bytes(90)
            case "too long":
                shop.files["x.gz"] = bytes(10**6)
            case "broken off":
                shop.files["x.gz"], shop.announced["x.gz"] = bytes(90), 100
            case _:
                shop.files.clear()
        with pytest.raises(BadInput, match=message) as refused:
            fetch(wanted, tmp_path / "data" / "x.gz")
        assert shop.base in str(refused.value)
    assert files_under(tmp_path) == []


def test_an_older_file_survives_a_failed_download(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(b"old")
    with serving({"x.gz": bytes(100)}) as shop:
        wanted = replace(offered(shop, "x.gz"), md5="0" * 32)
        with pytest.raises(BadInput, match="expected 0000"):
            fetch(wanted, file)
    assert file.read_bytes() == b"old"
    assert files_under(tmp_path) == ["x.gz"]


def test_a_failed_download_is_in_the_one_message(tmp_path: Path) -> None:
    original = DATA_SETS["mnist"]
    assert isinstance(original, DigitSet)
    with serving({}) as shop:
        gone = shop.base
    nowhere = Download(gone + "x", 1, "")
    local = replace(original, downloads=tuple((name, nowhere) for name, _ in original.downloads))
    with pytest.raises(BadInput) as refused:
        load_split(local, folder=tmp_path, download=True)
    message = str(refused.value)
    assert message.startswith("MNIST: there is no train-images-idx3-ubyte.gz in ")
    assert "downloading it was tried and failed: http://127.0.0.1" in message
    assert "yann.lecun.com" in message


def test_only_http(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(gzip.compress(b"x"))
    with pytest.raises(BadInput, match="not an http address"):
        fetch(Download(secret.as_uri(), 1, ""), tmp_path / "x")
