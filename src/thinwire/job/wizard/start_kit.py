"""Start kits: one archive per party with all that it needs to begin, and nothing secret.

<party>/README.md              the commands, in order
<party>/<core>                 the core, byte for byte
<party>/<party>.template.toml  the party's own part, to be filled in
<party>/certs/ca.pem           the authority's certificate; with revoked.txt
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from jinja2 import Environment, StrictUndefined

from thinwire.base.errors import BadInput
from thinwire.job.schema import RosterFile
from thinwire.job.wizard.job_writer import read_core, render_part_template
from thinwire.net.pki.authority import ensure_authority
from thinwire.net.pki.certificates import Revocations, public_pem, read_certificates, require_party_name
from thinwire.storage.atomic_file import make_folder, map_write_errors, replace_file

_PRIVATE = re.compile(rb"PRIVATE KEY|AGE-SECRET-KEY")


@dataclass(frozen=True)
class StartKit:
    """One party's archive; its digest is for two people to compare over the telephone."""

    party: str
    archive: Path
    sha256: str


def write_kits(core_file: Path, certs: Path, folder: Path, version: str) -> list[StartKit]:
    """One archive for each party of the core. An authority is made in `certs` unless its certificate is there."""
    core = read_core(core_file)
    if core.network is None or core.network.address is None:
        raise BadInput(f"{core_file}: network.address is missing; say where the label party can be reached")
    names = [*(party.name for party in core.party), core.label_party.name]
    for name in names:
        require_party_name(name)  # it becomes a path
    contents = {name: _list_files(core, core_file, name, version) for name in names}
    if not (certs / "ca.pem").exists():
        ensure_authority(certs)
    authority = _read_public_files(certs)
    with map_write_errors(folder):
        make_folder(folder)
    return [_write_kit(folder, name, {**own, **authority}) for name, own in contents.items()]


def fingerprint_authority(certs: Path) -> str:
    """SHA-256 of the authority's certificate, as `openssl x509 -fingerprint` counts it."""
    return read_certificates(certs / "ca.pem")[0].fingerprint(SHA256()).hex()


def _list_files(core: RosterFile, core_file: Path, party: str, version: str) -> dict[str, bytes]:
    every = [*(one.name for one in core.party), core.label_party.name]
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)  # noqa: S701
    source = files("thinwire.job.wizard").joinpath("kit.md.jinja").read_text(encoding="utf-8")
    readme = environment.from_string(source).render(
        party=party,
        is_label=party == core.label_party.name,
        label_party=core.label_party.name,
        others=[name for name in every if name != party],
        core=core_file.name,
        address=core.network.address if core.network else "",
        version=version,
    )
    part = render_part_template(core, core_file.name, party)
    return {
        "README.md": readme.encode(),
        core_file.name: core_file.read_bytes(),
        f"{party}.template.toml": part.encode(),
    }


def _read_public_files(certs: Path) -> dict[str, bytes]:
    """Of the authority's file its certificates alone, whatever else somebody put into it."""
    revoked = "".join(f"{serial:x}\n" for serial in sorted(Revocations(certs / "revoked.txt").serials()))
    return {"certs/ca.pem": public_pem(*read_certificates(certs / "ca.pem")), "certs/revoked.txt": revoked.encode()}


def _write_kit(folder: Path, party: str, contents: Mapping[str, bytes]) -> StartKit:
    for name, data in contents.items():
        if _PRIVATE.search(data):
            raise BadInput(f"{name} holds a private key; a kit goes by e-mail, so take the key out of the file")
    data, archive = _pack(party, contents), folder / f"{party}-kit.tar.gz"
    with map_write_errors(archive, len(data)):
        replace_file(archive, data)
    return StartKit(party, archive, sha256(data).hexdigest())


def _pack(party: str, contents: Mapping[str, bytes]) -> bytes:
    """The same bytes for the same contents: no times, and nothing of whoever packs it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for folder in (party, f"{party}/certs"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700
            tar.addfile(entry)
        for name, data in sorted(contents.items()):
            entry = tarfile.TarInfo(f"{party}/{name}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)
