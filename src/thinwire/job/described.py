"""What a report says of a run before its first round: who, what, on what, by which recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import torch
from torch import Tensor, nn

from thinwire.compress import Identity
from thinwire.environment import environment
from thinwire.job.job import Job
from thinwire.job.recipe_words import axes_of, link_said
from thinwire.job.result import better
from thinwire.job.who_sees import Roster, budget, who_sees
from thinwire.models.optimizers import OptimizerSpec
from thinwire.party import Batches, FeatureParty, LabelParty
from thinwire.report.record import About, Held, SvflRound
from thinwire.types import PartyName
from thinwire.wire.codec import encode
from thinwire.wire.frame import HEADER_SIZE

__all__ = ["about_job", "held_by", "loss_name", "settled", "svfl_round"]

_FEW = 1024


def about_job(job: Job, widths: Mapping[PartyName, int], batches: Batches) -> About:
    """Of a job whose parties are all simulated here."""
    label = job.label_party
    tests = 0 if label.test_labels is None else len(label.test_labels)
    held = [held_by(party, widths[party.name], party.optimizer or job.optimizer) for party in job.parties]
    held.append(held_by(label, widths.get(label.name), label.optimizer or job.optimizer))
    roster = Roster(label.name, tuple(party.name for party in job.parties), label.features is not None, tests > 0)
    return About(
        method=job.recipe.name,
        label_party=label.name,
        parties=tuple(held),
        axes=axes_of(job.recipe, link_said(job.link)),
        rows=job.rows,
        test_rows=tests,
        batch_size=job.batch_size,
        metrics=tuple(job.metrics),
        target=job.target,
        loss=loss_name(label.loss),
        better={name: better(name) for name in (*job.metrics, "loss")},
        who_sees={name: tuple(seen) for name, seen in who_sees(job.recipe, roster).items()},
        protection=budget(job.recipe, job.training, job.budget),
        svfl_round=svfl_round([widths[party.name] for party in job.parties], job.rows, job.batch_size),
        **settled(job.recipe.digest(), batches, job.seed),
    )


def settled(recipe_digest: str, batches: Batches, seed: int) -> dict[str, Any]:
    """What every kind of run says in the same way."""
    return {
        "recipe_digest": recipe_digest,
        "rounds": batches.rounds,
        "rounds_per_epoch": batches.rounds_per_epoch,
        "seed": seed,
        "environment": {**environment(), "threads": str(torch.get_num_threads())},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def held_by(party: FeatureParty | LabelParty, width: int | None, optimizer: OptimizerSpec) -> Held:
    """A party that is here, with its data and models."""
    models: list[nn.Module] = [] if party.bottom is None else [party.bottom]
    if isinstance(party, LabelParty):
        role: Literal["label", "feature"] = "label"
        rows, tests = party.labels, party.test_labels
        models.append(party.top)
    else:
        role, rows, tests = "feature", party.features, party.test_features
    return Held(
        name=party.name,
        role=role,
        columns=None if party.features is None else _shape(party.features),
        rows=len(rows),
        test_rows=0 if tests is None else len(tests),
        width=width,
        model=" and ".join(type(model).__name__ for model in models),
        parameters=sum(p.numel() for model in models for p in model.parameters()),
        optimizer=_said(optimizer),
    )


def svfl_round(widths: list[int], rows: int, batch_size: int | None) -> SvflRound:
    """Split learning without compression: every row's embedding goes up once an epoch, its derivative comes down."""
    size = min(batch_size or rows, rows)
    whole, rest = divmod(rows, size)
    messages = [size] * whole + ([rest] if rest else [])
    counts = {count: messages.count(count) for count in set(messages)}
    total = sum(times * _message_bytes(count, width) for count, times in counts.items() for width in widths)
    return SvflRound(up=total / len(messages), down=total / len(messages))


def _message_bytes(rows: int, width: int) -> int:
    """As the codec writes it; of a long one the beginning is written, and 4 bytes a value added."""
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


def _shape(features: Tensor) -> str:
    return " x ".join(map(str, features.shape[1:]))


def loss_name(loss: object) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__)).strip("_")
