"""Where a party's certificate, key and authority lie, and the names to expect in the others' certificates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thinwire.errors import BadInput
from thinwire.job.schema import PartyEntry
from thinwire.transport.certificates import CertificateFiles
from thinwire.types import PartyName

__all__ = ["certificate_files", "certificate_names"]


def certificate_files(section: PartyEntry, certs: Path, folder: Path) -> CertificateFiles:
    """What the section names, from the job file's folder; the rest as `thinwire certs` leaves it in `certs`."""
    usual = CertificateFiles.in_folder(certs, section.name)
    return CertificateFiles(
        authority=usual.authority if section.authority is None else folder / section.authority,
        certificate=usual.certificate if section.certificate is None else folder / section.certificate,
        key=usual.key if section.key is None else folder / section.key,
        revoked=usual.revoked if section.revoked is None else folder / section.revoked,
    )


def certificate_names(sections: Sequence[PartyEntry]) -> dict[PartyName, str]:
    """The name that each party's certificate carries: the party's own unless given."""
    found: dict[PartyName, str] = {}
    for section in sections:
        name = section.certificate_name or section.name
        other = next((party for party, taken in found.items() if taken == name), None)
        if other is not None:
            raise BadInput(
                f"certificate_name: {other!r} and {section.name!r} would both be {name!r}, so that nobody could tell "
                "them apart"
            )
        found[section.name] = name
    return found
