"""What a check says; and the checks of a party's own key, certificate, and list of revoked ones."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from thinwire.base.errors import BadInput
from thinwire.net.links.network_party import NetworkParty
from thinwire.net.pki.certificates import (
    Credentials,
    find_names,
    format_moment,
    load_credentials,
    read_certificates,
    read_key,
)

_FEW_DAYS = 30


class CheckVerdict(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: CheckVerdict
    says: str  # in a line
    more: tuple[str, ...] = ()  # the way out, or details
    facts: Mapping[str, Any] = field(default_factory=dict)  # for machines


_Value = TypeVar("_Value")
BytesShown: TypeAlias = Callable[[float], str]
Checks: TypeAlias = Generator[Check, None, _Value]  # and what they leave to the ones that follow


def _judge(verdict: CheckVerdict) -> Callable[..., Check]:
    return lambda name, says, *more, **facts: Check(name, verdict, says, more, facts)


ok, warning, problem = map(_judge, (CheckVerdict.OK, CheckVerdict.WARNING, CheckVerdict.PROBLEM))


def skip_checks(names: Sequence[str], why: str) -> Iterator[Check]:
    return (Check(name, CheckVerdict.NOT_CHECKED, why) for name in names)


def check_certificates(own: NetworkParty) -> Checks[Credentials | None]:
    files, name = own.certificate_files, own.certificate_names[own.me]
    key, named = _key(files.key), _named(files.certificate, name)
    yield key
    yield named
    if CheckVerdict.PROBLEM in (key.verdict, named.verdict):
        yield from skip_checks(("certificate", "revoked list"), "needs the key, and a certificate of the right name")
        return None
    try:
        credentials = load_credentials(files, name)
    except BadInput as error:
        yield problem("certificate", "cannot be used", str(error))
        yield from skip_checks(("revoked list",), "needs the certificate")
        return None
    yield _lifetime(credentials, name)
    yield _revoked(own, credentials)
    return credentials


def _key(file: Path) -> Check:
    try:
        read_key(file)
    except BadInput as error:
        return problem("key", "cannot be used", str(error))
    return ok("key", f"only the owner can read {file}")


def _named(file: Path, name: str) -> Check:
    try:
        held = find_names(read_certificates(file)[0], file)
    except BadInput as error:
        return problem("name", "cannot be read", str(error))
    if name in held:
        return ok("name", f"the certificate is for {name!r}", names=sorted(held))
    shown = ", ".join(sorted(held)) or "nobody"
    return problem(
        "name",
        f"the certificate is for {shown}, not {name!r}",
        "give each party the certificate issued for its name, or set certificate_name in its section; the "
        f"file is {file}",
    )


def _lifetime(credentials: Credentials, name: str) -> Check:
    days = (credentials.not_after - datetime.now(UTC)).days
    facts = {"days_left": days, "not_after": credentials.not_after.isoformat()}
    says = f"valid for {days} more days, until {format_moment(credentials.not_after)}"
    if days >= _FEW_DAYS:
        return ok("certificate", says, **facts)
    return warning("certificate", says, f"renew it soon: thinwire certs DIR --renew {name}", **facts)


def _revoked(own: NetworkParty, credentials: Credentials) -> Check:
    try:
        listed = own.read_revocations()
        refusal = listed.find_refusal(credentials.certificate_pem)
    except BadInput as error:
        return problem("revoked list", "cannot be read", str(error))
    if refusal is not None:
        way_out = f"get a new one: thinwire certs DIR --renew {own.certificate_names[own.me]}"
        return problem("revoked list", f"our own certificate is on it: {refusal}", way_out)
    count = len(listed.serials())
    return ok("revoked list", f"{count or 'no'} certificates are revoked, ours is not", revoked=count)
