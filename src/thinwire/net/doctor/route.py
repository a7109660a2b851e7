"""The way to the label party's port, as gRPC goes it: straight, or through a proxy."""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from thinwire.base.format import printable
from thinwire.engine.channel.base import TransportError
from thinwire.net.links.endpoint import Endpoint
from thinwire.net.pki.certificates import CertificateFiles, Credentials, read_names

_CONNECT_SECONDS = 4.0


class RouteProblem(TransportError):
    """The label party cannot be met; `way_out` says what to look at."""

    def __init__(self, cause: str, way_out: str) -> None:
        self.way_out = way_out
        super().__init__(cause)


@dataclass(frozen=True)
class NetworkRoute:
    """How gRPC goes to an address: straight, or through an HTTP proxy."""

    address: Endpoint
    proxy: Endpoint | None = None
    variable: str = ""  # of the environment, where the proxy stands
    authorization: str = ""  # for the proxy; never shown

    @classmethod
    def to(cls, address: str, environment: Mapping[str, str]) -> NetworkRoute:
        """By the rules of gRPC: the first of three variables that is set, unless the host is excepted."""
        place = Endpoint.parse(address)
        variable = next((name for name in ("grpc_proxy", "https_proxy", "http_proxy") if environment.get(name)), "")
        excepted = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
        if not variable or any(_excepts(entry.strip(), place.host) for entry in excepted.split(",")):
            return cls(place)
        parts = urlsplit(environment[variable])
        if parts.scheme != "http" or not parts.hostname:
            return cls(place)  # gRPC takes no notice of it either
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        return cls(place, Endpoint(parts.hostname, parts.port or 443), variable, user)

    @property
    def first(self) -> Endpoint:
        """Where the connection goes."""
        return self.proxy or self.address

    def resolve(self) -> list[str]:
        """The first host's addresses."""
        try:
            found = socket.getaddrinfo(self.first.host, self.first.port, type=socket.SOCK_STREAM)
        except OSError as error:
            field = self.variable or "network.address"
            raise RouteProblem(
                f"no host is called {self.first.host} ({error.strerror})",
                f"{field} gives this name: is it spelled correctly, and does DNS work on this machine?",
            ) from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def connect(self) -> socket.socket:
        """A connection to the label party's port, as yet without TLS."""
        try:
            made = socket.create_connection((self.first.host, self.first.port), _CONNECT_SECONDS)
        except ConnectionRefusedError:
            raise RouteProblem(f"nothing listens on {self.first}", self._nobody()) from None
        except OSError as error:
            raise RouteProblem(
                f"{self.first} cannot be reached ({error.strerror or 'no answer within 4 s'})",
                "check firewalls in between and the address; only the label party needs an open port",
            ) from None
        if self.proxy is not None:
            self._through_proxy(made)
        return made

    def _nobody(self) -> str:
        if self.proxy is not None:
            return f"the proxy is identified by {self.variable}; start it, or unset that variable"
        return (
            "start `thinwire doctor` with --wait, or `thinwire party`, at the label party; or network.address is "
            "another one. --wait SECONDS here keeps trying"
        )

    def _through_proxy(self, made: socket.socket) -> None:
        lines = [f"CONNECT {self.address} HTTP/1.1", f"Host: {self.address}"]
        if self.authorization:
            lines.append(f"Proxy-Authorization: Basic {b64encode(self.authorization.encode()).decode()}")
        try:
            made.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b""
            while b"\r\n\r\n" not in answer and len(answer) < 1 << 14 and (more := made.recv(4096)):
                answer += more
        except OSError:
            answer = b""
        status = answer.partition(b"\r\n")[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            made.close()
            raise RouteProblem(
                f"the proxy {self.proxy} does not connect to {self.address} ({printable(status) or 'it hung up'})",
                f"ask for a CONNECT to this address there, or except it in no_proxy; {self.variable} names the proxy",
            )


def _excepts(entry: str, host: str) -> bool:
    if not entry:
        return False
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())


def check_tls(made: socket.socket, credentials: Credentials, files: CertificateFiles, name: str) -> str:
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
            held = read_names(ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode())
            if name not in held:
                raise RouteProblem(
                    f"the certificate there is for {printable(', '.join(sorted(held))) or 'nobody'}, not {name!r}",
                    "is network.address the label party's? Its certificate must carry its name in the job, or "
                    "the certificate_name of its section",
                )
            # What the other side thinks of our certificate is known only by what it says next.
            if not secure.recv(1):
                raise ConnectionResetError
    except ssl.SSLCertVerificationError as error:
        raise RouteProblem(
            f"the certificate there is not accepted here: {error.verify_message}",
            f"both sides need certificates of one authority that are valid now; ours is {files.authority}",
        ) from None
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise _refused_hands(reason, files) from None
    except (ConnectionError, TimeoutError):
        raise RouteProblem(
            "the server there rejects our certificate, or is not thinwire",
            f"compare {files.authority} with the label party's; is {files.certificate} on its revocation list?",
        ) from None
    return name


def _refused_hands(reason: str, files: CertificateFiles) -> RouteProblem:
    if "wrong version" in reason or "record layer" in reason:
        return RouteProblem(
            "what listens there does not speak TLS", "is network.address the label party's, port included?"
        )
    if "alert" in reason:
        return RouteProblem(
            f"our certificate is not accepted there ({reason})",
            f"both sides need certificates of one authority that are valid now; ours is {files.certificate}",
        )
    return RouteProblem(f"the TLS handshake fails ({reason})", "is network.address the label party's, port included?")
