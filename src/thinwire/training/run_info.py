"""What a report says of a run before its first round: who, what, on what, by which recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from math import isinf
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from thinwire.base.process import environment
from thinwire.base.types import PartyName
from thinwire.engine.channel.link import Link
from thinwire.engine.compress import Identity
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.privacy import Labels, SecureSum
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.programs.program import Batches
from thinwire.engine.protocols.context import Groups
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import CachedSteps, LocalSteps, OneWay, Overlap
from thinwire.engine.streams import ErrorFeedback, RowOwners, StreamSpec
from thinwire.engine.wire.codec import encode
from thinwire.engine.wire.frame import HEADER_SIZE
from thinwire.job.disclosure import Participants, describe_budget, describe_training
from thinwire.job.job import Job
from thinwire.job.settings import RunSettings
from thinwire.report.record import PartyInfo, RunInfo, SvflRound
from thinwire.training.result import better

if TYPE_CHECKING:
    from thinwire.job.party_view import PartyView

_FEW = 1024


_WHERE = "over the network: gRPC with mutual TLS, one process per party"


def describe_job(job: Job, widths: Mapping[PartyName, int], batches: Batches) -> RunInfo:
    """Of a job whose parties are all simulated here."""
    held = [describe_party(one, widths.get(one.name), one.optimizer or job.optimizer) for one in job.everyone]
    return RunInfo(
        parties=tuple(held),
        axes=describe_axes(job.recipe, describe_link(job.link)),
        validation_rows=job.validation_rows,
        test_rows=job.test_rows,
        metrics=tuple(job.metrics),
        loss=loss_name(job.label_party.loss),
        svfl_round=svfl_round({name: widths[name] for name in job.names}, job.rows, batches, job.owners),
        **_describe_start(job.recipe, job.roster, job.settings, batches, job.rows),
    )


def describe_party_run(
    own: PartyView,
    party: FeatureParty | LabelParty,
    widths: Mapping[PartyName, int],
    batches: Batches,
    rows: int,
    owners: Mapping[PartyName, Groups],
) -> RunInfo:
    """Of the others the names and the widths; what they hold is theirs to tell."""
    label, settings = own.label_party, own.settings
    mine = describe_party(party, widths.get(own.me), party.optimizer or own.optimizer)
    held = [
        mine
        if name == own.me
        else PartyInfo(name=name, role="label" if name == label else "feature", width=widths.get(name))
        for name in (*own.feature_parties, label)
    ]
    exchanged = own.feature_parties if own.is_label_party else (own.me,)
    return RunInfo(
        me=own.me,
        parties=tuple(held),
        axes=describe_axes(own.recipe, _WHERE),
        validation_rows=mine.validation_rows or 0,
        test_rows=mine.test_rows or 0,
        metrics=tuple(settings.metrics) if own.is_label_party else (),
        loss=loss_name(party.loss) if isinstance(party, LabelParty) else "",
        svfl_round=svfl_round({name: widths[name] for name in exchanged}, rows, batches, owners),
        **_describe_start(own.recipe, own.roster, settings, batches, rows),
    )


def _describe_start(
    recipe: Recipe, roster: Participants, settings: RunSettings, batches: Batches, rows: int
) -> dict[str, Any]:
    """What every kind of run says in the same way."""
    return {
        "method": recipe.name,
        "label_party": roster.label_party,
        "recipe_digest": recipe.digest(),
        "rows": rows,
        "batch_size": settings.batch_size,
        "rounds": batches.rounds,
        "rounds_per_epoch": batches.rounds_per_epoch,
        "seed": settings.seed,
        "target": settings.target,
        "better": {name: better(name) for name in (*settings.metrics, "loss")},
        "who_sees": {name: tuple(seen) for name, seen in describe_training(recipe, roster).items()},
        "protection": describe_budget(recipe, settings.training, settings.budget),
        "environment": {**environment(), "threads": str(torch.get_num_threads())},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def describe_party(party: FeatureParty | LabelParty, width: int | None, optimizer: OptimizerSpec) -> PartyInfo:
    """A party that is here, with its data and models."""
    models: list[nn.Module] = [] if party.bottom is None else [party.bottom]
    if isinstance(party, LabelParty):
        role: Literal["label", "feature"] = "label"
        rows = party.labels
        models.append(party.top)
    else:
        role, rows = "feature", party.features if party.group is None else party.group
    return PartyInfo(
        name=party.name,
        role=role,
        columns=None if party.features is None else " x ".join(map(str, party.features.shape[1:])),
        rows=len(rows),
        validation_rows=_count_held_out(party, HeldOut.VALIDATION),
        test_rows=_count_held_out(party, HeldOut.TEST),
        owners=None if getattr(party, "group", None) is None else len(party.features),
        width=width,
        model=" and ".join(type(model).__name__ for model in models),
        parameters=sum(p.numel() for model in models for p in model.parameters()),
        optimizer=_said(optimizer),
    )


def _count_held_out(party: FeatureParty | LabelParty, which: HeldOut) -> int:
    return party.count_rows(which) if isinstance(party, FeatureParty) else len(party.held_out.get(which, ()))


def svfl_round(
    widths: Mapping[PartyName, int], rows: int, batches: Batches, owners: Mapping[PartyName, Groups]
) -> SvflRound:
    """Split learning without compression: every row's embedding goes up once per epoch, its derivative comes down.

    Where rows have owners in common, one for each owner of a batch.
    """
    rounds, total = batches.rounds_per_epoch, 0
    for name, width in widths.items():
        grouped = owners[name].training if name in owners else None
        counts = Counter(_list_sizes(rows, batches) if grouped is None else _count_owners(grouped, batches))
        total += sum(times * _message_bytes(count, width) for count, times in counts.items())
    return SvflRound(up=total / rounds, down=total / rounds)


def _list_sizes(rows: int, batches: Batches) -> list[int]:
    """Rows of each message of an epoch."""
    whole, rest = divmod(rows, batches.size)
    return [batches.size] * whole + ([rest] if rest else [])


def _count_owners(owners: RowOwners, batches: Batches) -> list[int]:
    """Of each message of the first epoch."""
    return [len(owners.select(batches.rows(t)).owners) for t in range(batches.rounds_per_epoch)]


def _message_bytes(rows: int, width: int) -> int:
    """As the codec writes it; of a long one the beginning is written, and 4 bytes per value added."""
    few = min(rows, _FEW)
    values = torch.randn(few, width, generator=torch.Generator().manual_seed(0))
    return HEADER_SIZE + len(encode(Identity().compress(values, torch.Generator()))) + 4 * (rows - few) * width


def _said(value: Any) -> str:
    """As one would write it: Adam(lr=Cosine(0.005))."""
    if not is_dataclass(value) or isinstance(value, type):
        return f"{value:g}" if isinstance(value, float) else str(value)
    parts = []
    for one in fields(value):
        given = getattr(value, one.name)
        if one.default is MISSING:
            parts.append(_said(given))
        elif given != one.default:
            parts.append(f"{one.name}={_said(given)}")
    return f"{type(value).__name__}({', '.join(parts)})"


def loss_name(loss: object) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__)).strip("_")


_ONCE = "every batch is exchanged and used for one update"
_OVERLAPS = {
    Overlap.NONE: "",
    Overlap.DETERMINISTIC: ", taken while an embedding is in transit",
    Overlap.FILLING: ", as many as fit while an embedding is in transit",
    Overlap.AHEAD: ", taken while two embeddings are in transit",
}


def describe_axes(recipe: Recipe, where: str) -> dict[str, str]:
    """What travels, when the parties talk, who sees what, where it runs."""
    return {"what travels": _what(recipe), "when": _when(recipe), "who sees": _who(recipe), "where": where}


def describe_link(link: Link | None) -> str:
    """Where a simulated run runs."""
    if link is None:
        return "all parties simulated in one process, without a link clock"
    rate = "an unlimited link" if isinf(link.bandwidth_mbit) else f"a link of {link.bandwidth_mbit:g} Mbit/s"
    down = "" if link.down_bandwidth_mbit is None else f" up and {link.down_bandwidth_mbit:g} Mbit/s down"
    more = f", {len(link.parties)} parties with their own links" if link.parties else ""
    return f"all parties simulated in one process, on {rate}{down}, {link.latency_ms:g} ms one way{more}"


def _what(recipe: Recipe) -> str:
    up = f"embeddings are sent up {_stream(recipe.uplink)}"
    scored = "" if isinstance(recipe.scoring, Identity) else f"; for rows that are only scored, by {recipe.scoring}"
    if recipe.labels is Labels.SHARED:
        return f"{up}{scored}; down go all parties' embeddings and the top model, {_stream(recipe.top)}"
    if isinstance(recipe.schedule, OneWay):
        return f"{up}{scored}; nothing is sent down"
    return f"{up}{scored}; derivatives (gradients) are sent down {_stream(recipe.downlink)}"


def _stream(spec: StreamSpec) -> str:
    if isinstance(spec, ErrorFeedback):
        return f"with error feedback, by {spec.compressor}"
    return "as they are" if isinstance(spec.compressor, Identity) else f"by {spec.compressor}"


def _when(recipe: Recipe) -> str:
    if recipe.order == "update_first":
        return f"{_describe_schedule(recipe)}; every update precedes its exchange and uses the current surrogates"
    return _describe_schedule(recipe)


def _describe_schedule(recipe: Recipe) -> str:
    match recipe.schedule:
        case CachedSteps(reuse=1, overlap=Overlap.AHEAD):
            return f"{_ONCE}; the next embedding is sent before the answer to this one arrives"
        case CachedSteps(reuse=1):
            return _ONCE
        case CachedSteps() as cached:
            xi = cached.xi_degrees
            weights = "" if xi is None else f", rows weighted by their cosine, up to {xi:g} degrees"
            return (
                f"the last {cached.capacity} exchanges are cached, each is used for {cached.reuse} updates, "
                f"{cached.steps} local steps per round{_OVERLAPS[cached.overlap]}{weights}"
            )
        case OneWay() as one_way:
            return (
                f"every row is sent once; the label party then trains by itself, in at most {one_way.passes} passes "
                "over the received data"
            )
        case LocalSteps(steps=1):
            return _ONCE
        case LocalSteps() as local:
            return f"every batch is exchanged and used for {local.steps} updates"
    return _ONCE


def _who(recipe: Recipe) -> str:
    labels = "labels go to every party" if recipe.labels is Labels.SHARED else "labels stay with the label party"
    summed = "; it sees only the sum of the embeddings" if isinstance(recipe.aggregation, SecureSum) else ""
    defence = (
        ""
        if isinstance(recipe.defence, NoDefence)
        else f"; derivatives (gradients) are protected by {recipe.defence}"
    )
    return labels + summed + defence
