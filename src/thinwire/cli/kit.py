"""`thinwire kit`: what every party needs to begin, one archive each, safe to e-mail."""

from __future__ import annotations

from pathlib import Path

from thinwire import __version__
from thinwire.cli.output import print_result


def kit(core: Path, *, certs: Path = Path("certs"), out: Path = Path("kits"), as_json: bool = False) -> None:
    """Write a start kit for each party: shared core, authority's certificate and commands to run, but no key."""
    from thinwire.job.wizard.start_kit import fingerprint_authority, write_kits

    is_new = not (certs / "ca.pem").exists()
    kits = write_kits(core, certs, out, __version__)
    facts = {
        "kits": {one.party: {"archive": str(one.archive), "sha256": one.sha256} for one in kits},
        "authority": {"certificate": str(certs / "ca.pem"), "made": is_new, "sha256": fingerprint_authority(certs)},
    }
    made = [f"authority made in {certs}: keep {certs / 'ca.key'} off line"] if is_new else []
    lines = [
        *made,
        "one archive per party, nothing in them is secret; its SHA-256 is to be compared over the telephone:",
        *(f"  {one.archive}  {one.sha256}" for one in kits),
        "next: each party unpacks its kit with `tar xzf`, follows README.md and sends back its request; sign it with",
        f"  thinwire certs {certs} --sign {kits[0].party}.csr",
    ]
    print_result(facts, as_json, lines)
