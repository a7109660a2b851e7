"""All checks, in their order."""

from __future__ import annotations

from collections.abc import Iterator

from thinwire.network.doctor.calling import calling
from thinwire.network.doctor.certificates import certificates
from thinwire.network.doctor.check import BytesShown, Check, Patient, not_checked
from thinwire.network.doctor.job_file import job_file, recipe, versions
from thinwire.network.doctor.listening import listening
from thinwire.network.doctor.own_data import own_rows, top_model
from thinwire.network.doctor.room import like_ours, room

__all__ = ["examined"]

_OF_THE_JOB = ("recipe", "approval", "key", "name", "certificate", "revoked list", "row ids", "data", "model")
_OF_THE_MACHINE = ("memory", "run folder", "disk")


def examined(patient: Patient, bytes_shown: BytesShown) -> Iterator[Check]:
    """Every check, in order; those that need what another one did not find are not made, and say so."""
    yield versions()
    own = yield from job_file(patient)
    if own is None:
        yield from not_checked((*_OF_THE_JOB, *_OF_THE_MACHINE, "network"), "needs the job file")
        return
    yield from recipe(own)
    credentials = yield from certificates(own)
    brought, held = yield from own_rows(own)
    if own.is_label_party:
        widths = yield from listening(own, credentials, brought, patient)
        yield top_model(own, held, widths)
        yield from room(own, held, widths, patient.folder, bytes_shown)
    else:
        yield from room(own, held, like_ours(own, held), patient.folder, bytes_shown)
        yield from calling(own, credentials, brought, patient.wait_seconds)
