"""TLS as a run speaks it, but with words for whatever fails."""

from __future__ import annotations

import socket
import ssl

from thinwire.network.doctor.way import Trouble
from thinwire.transport.certificates import CertificateFiles, Credentials, names_of
from thinwire.transport.records import printable

__all__ = ["shake_hands"]


def shake_hands(made: socket.socket, credentials: Credentials, files: CertificateFiles, name: str) -> str:
    """TLS 1.3 with both certificates; gives the name that the other side proved."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # names are compared below, as the run does
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=credentials.authority_pem.decode())
    context.load_cert_chain(files.certificate, files.key)
    try:
        with context.wrap_socket(made) as secure:
            held = names_of(ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode())
            if name not in held:
                raise Trouble(
                    f"the certificate there is for {printable(', '.join(sorted(held))) or 'nobody'}, not {name!r}",
                    "is network.address the label party's? Its certificate must carry its name in the job, or "
                    "the certificate_name of its section",
                )
            # What the other side thinks of our certificate is known only by what it says next.
            if not secure.recv(1):
                raise ConnectionResetError
    except ssl.SSLCertVerificationError as error:
        raise Trouble(
            f"the certificate there is not accepted here: {error.verify_message}",
            f"both sides need certificates of one authority that are valid now; ours is {files.authority}",
        ) from None
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise _refused_hands(reason, files) from None
    except (ConnectionError, TimeoutError):
        raise Trouble(
            "whoever is there hangs up on our certificate, or is no thinwire",
            f"compare {files.authority} with the label party's; is {files.certificate} on its list of revoked?",
        ) from None
    return name


def _refused_hands(reason: str, files: CertificateFiles) -> Trouble:
    if "wrong version" in reason or "record layer" in reason:
        return Trouble(
            "what listens there does not speak TLS", "is network.address the label party's, port included?"
        )
    if "alert" in reason:
        return Trouble(
            f"our certificate is not accepted there ({reason})",
            f"both sides need certificates of one authority that are valid now; ours is {files.certificate}",
        )
    return Trouble(f"the TLS handshake fails ({reason})", "is network.address the label party's, port included?")
