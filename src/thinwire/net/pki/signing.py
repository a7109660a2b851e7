"""Signatures under a party's certificate, for what passes through another party's hands.

proof = length of the chain in 4 bytes, the chain as PEM (the party's certificate first), the signature
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from thinwire.base.types import PartyName
from thinwire.net.grpc.service import Denied
from thinwire.net.pki.certificates import (
    BadCertificate,
    Credentials,
    Revocations,
    find_chain_problem,
    find_names,
    public_pem,
)

_LENGTH = 4  # bytes
_WHOLE = 1024
_PSS = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)


@dataclass(frozen=True, slots=True)
class CertifiedIdentity:
    """A party's own certificate and key, and the authority that it judges others by."""

    credentials: Callable[[], Credentials]  # read anew, so that they can be renewed
    certificate_names: Mapping[PartyName, str]
    revocations: Revocations

    def sign(self, statement: bytes) -> bytes:
        mine = self.credentials()
        key: Any = load_pem_private_key(mine.key_pem, None)
        signature = key.sign(statement, *_choose_scheme(key))
        lengths = [len(part).to_bytes(_LENGTH, "big") for part in (mine.certificate_pem, signature)]
        proof = b"".join([*lengths, mine.certificate_pem, signature])
        return proof + bytes(-len(proof) % _WHOLE)

    def verify(self, party: PartyName, statement: bytes, proof: bytes) -> None:
        """Raises Denied unless `party` signed, with a certificate that our own authority issued to it."""
        chain, size = (int.from_bytes(proof[at : at + _LENGTH], "big") for at in (0, _LENGTH))
        rest = proof[2 * _LENGTH :]
        chain_pem, signature = rest[:chain], rest[chain : chain + size]
        problem = self._problem(party, statement, chain_pem, signature)
        if problem is not None:
            raise Denied(
                f"the signature of {party!r} is not valid: {problem}. Whoever forwarded it may have changed it; "
                "compare certificates with that party over another channel before you continue"
            )

    def _problem(self, party: PartyName, statement: bytes, chain_pem: bytes, signature: bytes) -> str | None:
        try:
            chain = x509.load_pem_x509_certificates(chain_pem)
            authorities = x509.load_pem_x509_certificates(self.credentials().authority_pem)
            names = find_names(chain[0], "the peer's certificate")
        except (ValueError, BadCertificate) as error:
            return f"its certificate cannot be read ({error})"
        if self.certificate_names[party] not in names:
            return f"the certificate is of {', '.join(sorted(names)) or 'nobody'}"
        refusal = find_chain_problem(chain, authorities) or self.revocations.find_refusal(public_pem(chain[0]))
        if refusal is not None:
            return refusal
        return None if _is_signed(chain[0], statement, signature) else "these words were not signed with its key"


def _is_signed(leaf: x509.Certificate, statement: bytes, signature: bytes) -> bool:
    key: Any = leaf.public_key()
    try:
        key.verify(signature, statement, *_choose_scheme(key))
    except (InvalidSignature, BadCertificate):
        return False
    return True


def _choose_scheme(key: Any) -> tuple[Any, ...]:
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return (ec.ECDSA(SHA256()),)
    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return _PSS, SHA256()
    raise BadCertificate("the key", "it is neither ECDSA nor RSA", "have another one issued")
