"""`thinwire certs` as a user runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from processes import run
from thinwire import cli
from thinwire.net.pki.authority import ensure_authority
from thinwire.net.pki.certificates import CertificateFiles, Revocations, load_credentials

Certs = Callable[..., CompletedProcess[str]]


@pytest.fixture
def certs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Certs:
    """`thinwire certs pki ...` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def called(*words: str) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", "certs", "pki", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        code = ended.value.code
        return CompletedProcess(words, code if isinstance(code, int) else 0, shown.out, shown.err)

    return called


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    shown = run("certs", "pki", "--party", "bank", "--party", "shop", folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert sorted(file.name for file in (tmp_path / "pki").iterdir()) == [
        "bank.key",
        "bank.pem",
        "ca.key",
        "ca.pem",
        "revoked.txt",
        "shop.key",
        "shop.pem",
    ]
    for name in ("bank", "shop"):
        load_credentials(CertificateFiles.in_folder(tmp_path / "pki", name), name)


def test_says_what_was_made_how_long_it_lasts_and_where_it_goes(certs: Certs) -> None:
    shown = certs("--party", "bank", "--party", "a_1", "--host", "localhost", "--host", "10.0.0.1", "--days", "7")
    assert shown.returncode == 0
    assert "authority in pki, valid until 20" in shown.stdout
    assert f"  bank: made, valid until {datetime.now(UTC) + timedelta(days=7):%Y-%m}" in shown.stdout
    assert "    also for localhost, 10.0.0.1" in shown.stdout
    assert "  a_1: ca.pem, a_1.pem, a_1.key, revoked.txt" in shown.stdout
    assert "pki/ca.key stays here: it is needed only to issue" in shown.stdout


def test_json_is_one_object(certs: Certs) -> None:
    shown = certs("--party", "bank", "--host", "10.0.0.1", "--json")
    assert shown.stdout.count("\n") == 1
    found = json.loads(shown.stdout)
    assert found["folder"] == "pki"
    assert found["authority"]["certificate"] == "pki/ca.pem"
    (bank,) = found["certificates"]
    loaded = load_credentials(CertificateFiles.in_folder(Path("pki"), "bank"), "bank")
    assert bank == {
        "name": "bank",
        "done": "made",
        "serial": f"{loaded.serial:x}",
        "not_after": loaded.not_after.isoformat(),
        "hosts": ["10.0.0.1"],
        "revoked": False,
        "certificate": "pki/bank.pem",
        "key": "pki/bank.key",
    }


def test_what_is_there_is_kept_and_said_so(certs: Certs) -> None:
    certs("--party", "bank")
    before = {file.name: file.read_bytes() for file in Path("pki").iterdir()}
    shown = certs("--party", "bank")
    assert "  bank: kept, valid until" in shown.stdout
    assert "bank already has a certificate, which was kept; to change it: --renew bank" in shown.stdout
    assert "send each organisation" not in shown.stdout
    assert {file.name: file.read_bytes() for file in Path("pki").iterdir()} == before


def test_lists_what_there_is(certs: Certs) -> None:
    certs("--party", "shop", "--party", "bank")
    certs("--revoke", "shop")
    shown = certs()
    assert shown.returncode == 0
    rows = [line for line in shown.stdout.splitlines() if line.startswith("  ")]
    assert [row.split(", ")[0] for row in rows] == ["  bank: issued", "  shop: revoked"]
    found = json.loads(certs("--json").stdout)["certificates"]
    assert [(one["name"], one["done"], one["revoked"]) for one in found] == [
        ("bank", None, False),
        ("shop", None, True),
    ]
    for row, one in zip(rows, found, strict=True):
        assert row.endswith(f", serial {one['serial']}")


def test_an_authority_without_certificates(certs: Certs) -> None:
    ensure_authority(Path("pki"))
    shown = certs()
    assert shown.returncode == 0
    assert "no certificates yet; --party NAME makes one" in shown.stdout
    assert "there are none" in certs("--renew", "bank").stderr


def test_renews(certs: Certs) -> None:
    made = json.loads(certs("--party", "bank", "--host", "localhost", "--json").stdout)["certificates"][0]
    shown = certs("--renew", "bank")
    assert "  bank: renewed, valid until" in shown.stdout
    assert "    also for localhost" in shown.stdout
    assert "  bank: ca.pem, bank.pem, bank.key, revoked.txt" in shown.stdout
    assert "for a stolen key, use --revoke bank --renew bank" in shown.stdout
    assert json.loads(certs("--json").stdout)["certificates"][0]["serial"] != made["serial"]


def test_revokes(certs: Certs) -> None:
    certs("--party", "bank")
    pem = Path("pki/bank.pem").read_bytes()
    shown = certs("--revoke", "bank")
    assert "  bank: revoked, valid until" in shown.stdout
    assert "give pki/revoked.txt to every organisation" in shown.stdout
    assert Revocations(Path("pki/revoked.txt")).find_refusal(pem) is not None
    assert "  bank: revoked before, valid until" in certs("--revoke", "bank").stdout
    assert "it is revoked: --renew bank" in certs("--party", "bank").stdout


def test_a_stolen_key_is_one_command(certs: Certs) -> None:
    certs("--party", "bank")
    stolen = Path("pki/bank.pem").read_bytes()
    shown = certs("--revoke", "bank", "--renew", "bank")
    assert "  bank: revoked and renewed, valid until" in shown.stdout
    assert "give pki/revoked.txt to every organisation" in shown.stdout
    assert "send each organisation its files" in shown.stdout
    there = Revocations(Path("pki/revoked.txt"))
    assert there.find_refusal(stolen) is not None
    assert there.find_refusal(Path("pki/bank.pem").read_bytes()) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [],
            "pki holds no certificate authority; create one certificate per party with: thinwire certs pki "
            "--party NAME",
        ),
        (["--host", "a"], "--host goes with --party or --renew"),
        (["--party", "a b"], "party 'a b': a name has at most 64 letters, digits, - and _"),
        (["--party", "ca"], "and is not 'ca'"),
        (["--party", "a", "--host", "a:1"], "--host 'a:1': give a host name or an IP address, without a port"),
        (["--party", "a", "--party", "b", "--host", "a"], "would be valid for the party 'a' too"),
        (["--renew", "a"], "party 'a' has no certificate in pki; there are none"),
        (["--revoke", "../a"], "a name has at most 64 letters"),
        (["--party", "a", "--days", "0"], "--days"),
    ],
)
def test_wrong_input_makes_nothing(certs: Certs, words: list[str], message: str) -> None:
    shown = certs(*words)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr
    assert not Path("pki").exists()


def test_one_wrong_name_and_nothing_is_changed(certs: Certs) -> None:
    certs("--party", "bank", "--party", "shop")
    before = {file.name: file.read_bytes() for file in Path("pki").iterdir()}
    for words in (
        ["--revoke", "bank", "--renew", "shpo"],
        ["--revoke", "bank", "--party", "a b"],
        ["--renew", "bank", "--party", "x", "--host", "a b"],
    ):
        assert certs(*words).returncode == 2
    assert "did you mean 'shop'?" in certs("--renew", "shpo").stderr
    assert {file.name: file.read_bytes() for file in Path("pki").iterdir()} == before


def test_a_key_that_others_can_read_is_not_used_to_issue(certs: Certs) -> None:
    certs("--party", "bank")
    Path("pki/ca.key").chmod(0o644)
    shown = certs("--party", "shop")
    assert shown.returncode == 2
    assert shown.stderr.endswith("make it private: chmod 600 pki/ca.key [bad-certificate]\n")
