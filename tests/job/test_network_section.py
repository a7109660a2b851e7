"""[network], and what a party's section says for the network: places, certificates, approval."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from job.small import write_job
from thinwire.base.errors import BadInput
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.party_view import read_party_view
from thinwire.job.schema import NetworkSection
from thinwire.net.links.endpoint import Endpoint
from thinwire.net.links.network_party import NetworkParty
from thinwire.net.pki.certificates import CertificateFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_job(tmp_path)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:7443", "10.0.0.1", 7443),
        ("fl.shop.example:1", "fl.shop.example", 1),
        ("[::1]:7443", "::1", 7443),
        ("[2001:DB8::0]:65535", "2001:db8::", 65535),
        ("localhost:0", "localhost", 0),
    ],
)
def test_a_place_is_host_and_port(text: str, host: str, port: int) -> None:
    place = Endpoint.parse(text)
    assert place == Endpoint(host, port)
    assert Endpoint.parse(str(place)) == place


SUCH_AS = "must be host:port, such as fl.shop.example:7443 or [::1]:7443"
WRONG = [
    ("network.listen='7443'", f"network.listen {SUCH_AS}, got '7443'; the port is missing"),
    ("network.listen=':7443'", f"network.listen {SUCH_AS}, got ':7443'; the host is missing"),
    ("network.listen='::1:7443'", f"network.listen {SUCH_AS}, got '::1:7443'; an IPv6 address stands in brackets"),
    ("network.listen='[::x]:7443'", f"network.listen {SUCH_AS}, got '[::x]:7443'; [::x] is not an IPv6 address"),
    ("network.listen='a:70000'", f"network.listen {SUCH_AS}, got 'a:70000'; a port is a number up to 65535"),
    ("network.listen='a:-1'", f"network.listen {SUCH_AS}, got 'a:-1'; a port is a number up to 65535"),
    ("network.listen='a b:1'", f"network.listen {SUCH_AS}, got 'a b:1'; 'a b' is not a host name"),
    ("network.listen=7443", "network.listen must be a string, got 7443"),
    ("network.address='https://a:1'", f"network.address {SUCH_AS}, got 'https://a:1'; leave out https://"),
    (
        "network.address='0.0.0.0:7443'",
        "network.address must be a host and port that others can reach, got '0.0.0.0:7443'",
    ),
    ("network.address='a:0'", "network.address must be a host and port that others can reach, got 'a:0'"),
    ("network.adress='a:1'", "network.adress: unknown key; did you mean 'address'?"),
    ("network.wait_seconds=0", "network.wait_seconds must be greater than 0, got 0"),
    ("network.checkpoint_seconds='10'", "network.checkpoint_seconds must be a number, got '10'"),
    ("network.max_message_mb=-1", "network.max_message_mb must be greater than 0, got -1"),
    ("network.certs=''", "network.certs must have at least 1 character, got ''"),
    (
        "party.bank.approved='abc'",
        "party.bank.approved must be the digest of an agreement, or 12 or more of its first hex digits, got 'abc'",
    ),
    ("party.bank.certifcate='x'", "party.bank.certifcate: unknown key; did you mean 'certificate'?"),
    ("label_party.ids.colum='x'", "label_party.ids.colum: unknown key; did you mean 'column'?"),
    ("party.bank.ids={}", "party.bank.ids takes either file"),
]


@pytest.mark.parametrize(("setting", "message"), WRONG, ids=[setting for setting, _ in WRONG])
def test_what_is_wrong_is_said_with_its_path(path: Path, setting: str, message: str) -> None:
    for read in (lambda: load_job(path, [setting]), lambda: read_party_view(path, "bank", [setting])):
        with pytest.raises(BadInput, match=re.escape(message)) as refused:
            read()
        assert str(refused.value).startswith(f"{path}: ")


def placed(listen: str | None, address: str | None) -> NetworkParty:
    files = CertificateFiles.in_folder(Path("certs"), "clinic")
    return NetworkParty("clinic", "clinic", ("bank",), files, {}, listen, address, wait_seconds=1.0)


def test_listen_and_address_follow_from_each_other() -> None:
    assert placed(None, "fl.shop.example:7443").listen_address() == "0.0.0.0:7443"
    assert placed("fl.shop.example:7443", None).dial_address() == "fl.shop.example:7443"
    section = NetworkSection(listen="[::]:1", address="[2001:db8::1]:2")
    both = placed(section.listen, section.address)
    assert (both.listen_address(), both.dial_address()) == ("[::]:1", "[2001:db8::1]:2")
    with pytest.raises(BadInput, match=r'network.listen is missing; .* such as listen = "0.0.0.0:7443"'):
        placed(None, None).listen_address()
    for cannot_be_called in (None, "0.0.0.0:7443", "[::]:7443", "localhost:0"):
        with pytest.raises(BadInput, match=r"network\.address is missing; set the address of the label party"):
            placed(cannot_be_called, None).dial_address()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "[::1]", "localhost", "LOCALHOST."])
def test_a_loopback_address_is_listened_at_alone(host: str) -> None:
    label_party = placed(None, f"{host}:7443")
    assert label_party.listen_address() == label_party.dial_address() == f"{host}:7443"


@pytest.mark.parametrize(
    "host", ["192.0.2.7", "[2001:db8::1]", "fl.shop.example", "localhost.example", "127.example"]
)
def test_any_other_address_may_be_a_gateways_and_all_interfaces_are_listened_at(host: str) -> None:
    assert placed(None, f"{host}:7443").listen_address() == "0.0.0.0:7443"


def test_certificates_lie_in_certs_unless_a_section_says_otherwise(path: Path) -> None:
    certs = path.parent / "certs"
    usual = read_party_view(path, "bank")
    files = usual.certificate_files
    assert (files.authority, files.certificate, files.key) == (
        certs / "ca.pem",
        certs / "bank.pem",
        certs / "bank.key",
    )
    assert usual.certificate_names == {"bank": "bank", "shop": "shop", "clinic": "clinic"}
    own = read_party_view(
        path,
        "bank",
        [
            "network.certs='/etc/pki'",
            "party.bank.certificate='own/a.pem'",
            "party.bank.key='/keys/a.key'",
            "party.bank.revoked='r.txt'",
            "party.bank.certificate_name='bank.example'",
            "label_party.certificate_name='clinic.example'",
        ],
    )
    files = own.certificate_files
    assert (files.authority, files.certificate) == (Path("/etc/pki/ca.pem"), path.parent / "own/a.pem")
    assert (files.key, files.revoked) == (Path("/keys/a.key"), path.parent / "r.txt")
    assert own.certificate_names == {"bank": "bank.example", "shop": "shop", "clinic": "clinic.example"}
    with pytest.raises(BadInput, match="certificate_name: 'bank' and 'shop' would both be 'bank'"):
        read_party_view(path, "bank", ["party.shop.certificate_name='bank'"])


CHANGED_TERMS = [
    "job.epochs=7",
    "job.eval_every=1",
    "job.seed=9",
    "job.training='frozen'",
    "job.budget={epsilon=80.0}",
    "job.split={test=0.5}",
    "recipe.compressor.fraction=0.5",
    "party.bank.model.width=3",
    "party.bank.model={module='towers:Tower'}",
    "party.bank.serve={cache_rows=10}",
    "party.bank.serve={when_missing='mean'}",
]


@pytest.mark.parametrize("change", CHANGED_TERMS)
def test_an_approval_is_of_the_whole_agreement(path: Path, change: str) -> None:
    digest = read_party_view(path, "bank").consent.digest
    approved = [f"party.bank.approved='{digest}'"]
    assert read_party_view(path, "bank", approved).consent.is_approved()
    with pytest.raises(BadInput, match="'bank' has approved the agreement"):
        read_party_view(path, "bank", [*approved, change]).consent.is_approved()


def test_what_is_each_partys_own_matter_leaves_the_approval_as_it_is(path: Path) -> None:
    digest = read_party_view(path, "bank").consent.digest
    settings = ["network.wait_seconds=5", "party.bank.key='b.key'", "job.device='cpu'", "retention.logs_days=3"]
    assert read_party_view(path, "bank", settings).consent.digest == digest
    assert read_party_view(path, "shop").consent.digest != digest


def test_a_run_is_approved_as_its_job_was(path: Path, tmp_path: Path) -> None:
    for name in ("bank", "clinic"):
        for settings in ([], ["recipe.labels='shared'"]):
            asked = read_party_view(path, name, settings)
            (tmp_path / "resolved.toml").write_text(asked.format_document())
            assert read_party_view(tmp_path / "resolved.toml", name).consent.digest == asked.consent.digest


def test_the_terms_name_code_and_what_all_agree_on(path: Path) -> None:
    own = read_party_view(path, "bank", ["party.bank.model={module='towers:Tower'}", "party.bank.serve.cache_rows=5"])
    terms = own.consent.describe_training()
    assert "party.bank.model.module runs this party's own code: towers:Tower" in terms
    assert "job.epochs = 2, " in terms
    assert "clinic may keep 5 of its embeddings for 60 s" in terms
    assert f"agreement digest {own.consent.digest}" in own.consent.describe_scoring()


def test_an_approval_is_the_partys_own(path: Path) -> None:
    digest = load_job(path).recipe.digest()
    settings = [f"party.bank.approved='{digest[:12].upper()}'"]
    assert read_party_view(path, "bank", settings).section.approved == digest[:12]
    assert read_party_view(path, "shop", settings).section.approved is None


def test_the_simulator_takes_no_notice_of_the_network(path: Path) -> None:
    settings = [
        "network.listen='0.0.0.0:7443'",
        "network.certs='nowhere'",
        "party.bank.ids={file='nowhere.csv',column='id'}",
        "party.bank.key='nowhere'",
        "party.bank.approved='000000000000'",
    ]
    assert load_job(path, settings).digests() == load_job(path).digests()
    text = resolve_job(path, settings)
    assert f'certs = "{path.parent / "nowhere"}"' in text
    assert f'ids = {{ file = "{path.parent / "nowhere.csv"}", column = "id" }}' in text
    assert f'key = "{path.parent / "nowhere"}"' in text
