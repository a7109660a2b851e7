"""Keys for pairs of parties, agreed in one process as the parties of a run do it."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.engine.privacy import KeyAgreement, Subject, in_process_identities
from thinwire.engine.privacy.keys import derive_key, frame_values


def pair_keys(parties: Sequence[str], secret: bytes, run: int = 1) -> dict[str, dict[str, bytes]]:
    """keys[a][b] == keys[b][a]; repeatable, for the parties' own secrets follow from `secret`."""
    subject = Subject(run, "digest", tuple(parties))
    identities = in_process_identities(tuple(parties))
    agreements = {
        party: KeyAgreement(party, subject, identities[party], derive_key(secret, frame_values(party)))
        for party in parties
    }
    offers = {party: agreement.offer() for party, agreement in agreements.items()}
    return {
        party: agreement.pair_keys(
            agreement.verify_offers({other: o for other, o in offers.items() if other != party})
        )
        for party, agreement in agreements.items()
    }
