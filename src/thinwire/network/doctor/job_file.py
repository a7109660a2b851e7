"""Versions, the job file, and the recipe in it."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import torch

from thinwire import __version__
from thinwire.errors import BadInput
from thinwire.job.party_view import PartyView, read_party_view
from thinwire.network.doctor.check import Check, Checks, Patient, ok, problem, warning
from thinwire.transport.grpc_channel import grpc

__all__ = ["job_file", "recipe", "versions"]


def versions() -> Check:
    found = {"python": platform.python_version(), "thinwire": __version__, "torch": torch.__version__}
    found["grpc"] = str(grpc.__version__)
    return ok("versions", ", ".join(f"{name} {version}" for name, version in found.items()), **found)


def job_file(patient: Patient) -> Checks[PartyView | None]:
    try:
        own = read_party_view(patient.job, patient.name, patient.settings)
    except BadInput as error:
        yield problem("job file", "cannot be used", str(error))
        return None
    role = "the label party" if own.is_label_party else f"a feature party; the label party is {own.label_party!r}"
    yield ok("job file", f"{patient.job}: {own.me!r} is {role}", parties=[*own.feature_parties, own.label_party])
    return own


def recipe(own: PartyView) -> Iterator[Check]:
    consent = own.consent
    says = f"{own.recipe.name}, digest {consent.digest[:16]}"
    yield ok(
        "recipe", says, *consent.list_disclosures(), own.budget(), digest=consent.digest, who_sees=own.who_sees()
    )
    try:
        approved = consent.is_approved()
    except BadInput as error:
        yield problem("approval", "another recipe was approved", str(error))
        return
    if approved:
        yield ok("approval", f"{own.me!r} has approved this recipe")
    else:
        way_out = f'give --yes to `thinwire party`, or write approved = "{consent.digest[:16]}" into its section'
        yield warning("approval", f"nobody has approved this recipe for {own.me!r} yet", way_out)
