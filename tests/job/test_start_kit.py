"""Start kits: what is in them, that nothing secret ever is, and that the part inside can be filled in."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thinwire.base.errors import BadInput
from thinwire.cli import app
from thinwire.job.party_view import read_party_view
from thinwire.job.wizard import CoreAnswers, write_core
from thinwire.job.wizard.start_kit import write_kits
from thinwire.net.pki.authority import issue, revoke

NAMES = ["imaging", "laboratory", "clinic"]


def make_core(folder: Path, template: str = "trees") -> Path:
    told = CoreAnswers(template, ("imaging", "laboratory"), "clinic", "fl.clinic.example:7443")
    return write_core(told, folder / "core.toml").path


def unpack(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        assert all(one.isfile() or one.isdir() for one in members)
        return {one.name: tar.extractfile(one).read() for one in members if one.isfile()}  # type: ignore[union-attr]


def test_a_kit_holds_no_secret_whatever_lies_beside_it(tmp_path: Path) -> None:
    core, certs = make_core(tmp_path), tmp_path / "certs"
    issue(certs, NAMES)  # keys made here, in the same folder
    with (certs / "ca.pem").open("ab") as pasted:
        pasted.write((certs / "ca.key").read_bytes())
    revoke(certs, "laboratory")
    secrets = [line for file in certs.glob("*.key") for line in file.read_bytes().splitlines() if b"---" not in line]
    kits = write_kits(core, certs, tmp_path / "kits", "1.2.3")
    assert [one.party for one in kits] == NAMES
    for one in kits:
        files, name = unpack(one.archive), one.party
        own = ["README.md", "certs/ca.pem", "certs/revoked.txt", f"{name}.template.toml", "core.toml"]
        assert sorted(files) == sorted(f"{name}/{file}" for file in own)
        assert files[f"{name}/core.toml"] == core.read_bytes()
        everything = b"\n".join(files.values())
        assert b"PRIVATE" not in everything
        assert not [secret for secret in secrets if secret in everything]
        assert re.fullmatch(rb"[0-9a-f]+\n", files[f"{name}/certs/revoked.txt"])
        assert b'"thinwire==1.2.3"' in files[f"{name}/README.md"]


def test_the_same_core_makes_the_same_bytes(tmp_path: Path) -> None:
    core = make_core(tmp_path)
    first, again = (write_kits(core, tmp_path / "certs", tmp_path / out, "1") for out in ("a", "b"))
    assert [one.sha256 for one in first] == [one.sha256 for one in again]


@pytest.mark.parametrize(("name", "template"), [("imaging", "trees"), ("clinic", "trees"), ("clinic", "tabular")])
def test_the_part_in_it_is_one_once_names_are_filled_in(name: str, template: str, tmp_path: Path) -> None:
    kits = write_kits(make_core(tmp_path, template), tmp_path / "certs", tmp_path, "1")
    files = unpack(next(one.archive for one in kits if one.party == name))
    (tmp_path / "table.csv").write_text("patient,size,ill\n" + "".join(f"p{k},{k},{k % 2}\n" for k in range(200)))
    part = files[f"{name}/{name}.template.toml"].decode().replace(f"{name}.csv", "table.csv")
    part = part.replace("LABEL_COLUMN", "ill").replace("ID_COLUMN", "patient")
    (tmp_path / "own.toml").write_text(re.sub(r"alignment = .*\n", "", part))
    own = read_party_view(tmp_path / "own.toml", name)
    data = own.load_label_data().labels if own.is_label_party else own.load_features().features
    assert len(data) > 100


def test_what_is_refused(tmp_path: Path) -> None:
    core = make_core(tmp_path)
    written = core.read_text()
    core.write_text(f"{written}\n# -----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(BadInput, match=r"core\.toml holds a private key"):
        write_kits(core, tmp_path / "certs", tmp_path / "kits", "1")
    assert not list((tmp_path / "kits").iterdir())
    core.write_text(written.replace('address = "fl.clinic.example:7443"', ""))
    with pytest.raises(BadInput, match=r"network\.address is missing"):
        write_kits(core, tmp_path / "certs", tmp_path / "kits", "1")


def test_the_command_says_what_to_do_next(tmp_path: Path) -> None:
    core, certs = make_core(tmp_path), tmp_path / "certs"
    words = ["kit", str(core), "--certs", str(certs), "--out", str(tmp_path / "kits")]
    shown = CliRunner().invoke(app, words).stdout
    assert f"authority made in {certs}: keep {certs / 'ca.key'} off line" in shown
    assert f"thinwire certs {certs} --sign imaging.csr" in shown
    assert "authority made" not in CliRunner().invoke(app, words).stdout
