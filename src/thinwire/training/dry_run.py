"""What a job would cost and show, before it runs: rows, memory, the first round's bytes, who sees what."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from thinwire.base.format import format_bytes
from thinwire.base.types import Kind, PartyName, Progress, follow
from thinwire.engine.channel.ledger import EVALUATION
from thinwire.engine.methods import once, svfl
from thinwire.engine.models.encoders import MOST_COLUMNS, Bins, Encoder, PrincipalDirections
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.regression import Linear
from thinwire.engine.privacy import Labels
from thinwire.engine.privacy.accounting.ledger import TrainedOnRawRows
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import CachedSteps, OneWay, Overlap
from thinwire.engine.wire.codec import encode
from thinwire.job.disclosure import describe_budget, describe_training
from thinwire.job.job import Job
from thinwire.training.train import train

_SAMPLE = 10_000  # rows
_LITTLE = 2.0  # times fewer bytes than svfl
_ONCE = {Kind.LABELS.name, Kind.WARM_START.name, Kind.KEYS.name}


@dataclass(frozen=True)
class DryRun:
    """A checked job in numbers and words."""

    method: str
    rows: int
    test_rows: int
    owners: dict[PartyName, int]  # of training rows, at parties where several rows have one in common
    rounds: int
    widths: dict[PartyName, int]  # of the embeddings
    parameters: dict[str, int]  # of the models, by party; the top model under "top"
    surrogate_bytes: dict[PartyName, int]  # what error feedback, or a selection by derivative, remembers
    workset_bytes: dict[PartyName, int]  # exchanges kept for cached steps
    first_round_bytes: dict[str, int]  # up, down
    once_bytes: int  # at the start: labels, warm start
    other_bytes: dict[str, int | None]  # what else would cost, to the end
    who_sees: dict[PartyName, list[str]]
    protection: str  # what stands between the rows and what is seen
    warnings: list[str]
    prepared: dict[PartyName, list[dict[str, Any]]]  # what each column of a prepared table becomes
    label: str | None  # what the label column holds, where it has a task

    @property
    def all_rounds_bytes(self) -> int:
        """An estimate: if every round cost what the first one does."""
        return self.once_bytes + self.rounds * sum(self.first_round_bytes.values())


def run_dry(job: Job, on_progress: Progress | None = None) -> DryRun:
    """Takes one real round with copies of the models, and throws its result away."""
    widths = job.check()
    owners = {name: groups.training.count for name, groups in job.owners.items()}
    batch = job.batch_size or job.rows
    steps: tuple[Callable[[Job], Any], ...] = (_first_round, estimate_others, _warnings)
    (first, at_start), others, warnings = (step(job) for step in follow(steps, on_progress, "dry run"))
    return DryRun(
        method=job.recipe.name,
        rows=job.rows,
        test_rows=job.test_rows,
        owners=owners,
        rounds=job.limit_rounds(widths).rounds,
        widths=widths,
        parameters={name: sum(p.numel() for p in module.parameters()) for name, module in job.modules().items()},
        surrogate_bytes=surrogate_bytes(job.recipe, job.label_party.name, job.rows, widths, owners),
        workset_bytes=workset_bytes(job.recipe, job.label_party.name, batch, job.divide_rows().rounds, widths),
        first_round_bytes=first,
        once_bytes=at_start,
        other_bytes=others,
        who_sees=describe_training(job.recipe, job.roster),
        protection=describe_budget(job.recipe, job.training, job.budget),
        warnings=[*warnings, *_warn_of_small_savings(job, first, others)],
        prepared=describe_preparation(job),
        label=None if job.label_party.coding is None else job.label_party.coding.says,
    )


def describe_preparation(job: Job) -> dict[PartyName, list[dict[str, Any]]]:
    """A line a column, for each party that prepares a table."""
    return {party.name: party.preparation.describe() for party in job.everyone if party.preparation is not None}


def _first_round(job: Job) -> tuple[dict[str, int], int]:
    """Bytes of the first exchange, as really sent, and of what travels once; trees say nothing before the second."""
    first, once = _send_rounds(job, 1)
    if not any(isinstance(party.bottom, BoostedTrees) for party in job.everyone):
        return first, once
    both, _ = _send_rounds(job, 2)
    return {way: both[way] - first[way] for way in first}, once


def _send_rounds(job: Job, count: int) -> tuple[dict[str, int], int]:
    copied = job.duplicate()
    label, recipe = copied.label_party, copied.recipe
    recipe = replace(recipe, warm_passes=0)  # what a party learns by itself costs time, not bytes
    if isinstance(recipe.schedule, OneWay):
        recipe = replace(recipe, schedule=OneWay(passes=1))
    if isinstance(recipe.schedule, CachedSteps):  # whatever they fill, they send nothing
        recipe = replace(recipe, schedule=replace(recipe.schedule, overlap=Overlap.NONE))
    one = replace(
        copied,
        parties=[party.without_held_out_rows() for party in copied.parties],
        label_party=label.without_held_out_rows(),
        recipe=recipe,
        pretraining=None,
        epochs=count / job.divide_rows().rounds_per_epoch,
        eval_every=None,
        patience=None,
        diagnostics=False,
        column_importance=False,
        target=None,
        byte_budget=None,
        link_seconds_budget=None,
        link=None,
    )
    entries = train(one, callbacks=[]).ledger.entries()
    training = [entry for entry in entries if Kind[entry["kind"]] not in EVALUATION]
    rounds = [entry for entry in training if entry["kind"] not in _ONCE]
    up = sum(entry["bytes"] for entry in rounds if entry["receiver"] == label.name)
    down = sum(entry["bytes"] for entry in rounds if entry["sender"] == label.name)
    return {"up": up, "down": down}, sum(entry["bytes"] for entry in training if entry["kind"] in _ONCE)


# What else would cost ---------------------------------------------------------------------------------------


def estimate_others(job: Job) -> dict[str, int | None]:
    """Training bytes of svfl to the end, of one exchange of codes, and of the raw rows."""
    codes = None if isinstance(job.recipe.schedule, OneWay) else _estimate_codes(job)
    return {"svfl": _estimate_svfl(job), "one exchange of codes": codes, "raw rows gzipped": _estimate_raw(job)}


def _estimate_svfl(job: Job) -> int | None:
    """None where the bottom models cannot learn by it."""
    if any(isinstance(party.bottom, Encoder | BoostedTrees | Linear) for party in job.parties):
        return None
    plain = replace(job, recipe=svfl(), training=TrainedOnRawRows(), budget=None)
    first, once = _send_rounds(plain, 1)
    return once + job.divide_rows().rounds * sum(first.values())


def _estimate_codes(job: Job) -> int:
    """As the usual encoders would send a sample of the rows."""
    return sum(_scale_up(party.features, _encode_codes) for party in job.parties)


def _encode_codes(sample: Tensor) -> int:
    table = sample.flatten(1)[:, :MOST_COLUMNS]
    has_gaps = bool(table.isnan().any())
    encoder = Bins(table.shape[1]) if has_gaps else PrincipalDirections(table.shape[1])
    encoder.fit(table)
    return len(encode(once().uplink.compressor.compress(encoder(table), torch.Generator()), "small"))


def _estimate_raw(job: Job) -> int:
    """As float32 numbers, each party's table by itself."""

    def squeeze(sample: Tensor) -> int:
        return len(zlib.compress(sample.float().contiguous().numpy().tobytes(), 6))

    return sum(_scale_up(party.features, squeeze) for party in job.parties)


def _scale_up(features: Tensor, measure: Callable[[Tensor], int]) -> int:
    """Of all rows, or owners of rows, by what a sample of them takes."""
    rows = len(features)
    sample = features[:: -(-rows // _SAMPLE)]
    return round(measure(sample) * rows / len(sample))


# Memory ---------------------------------------------------------------------------------------------------


def surrogate_bytes(
    recipe: Recipe,
    label_party: PartyName,
    rows: int,
    widths: Mapping[PartyName, int],
    owners: Mapping[PartyName, int] = MappingProxyType({}),
) -> dict[PartyName, int]:
    """What streams remember, by party; `widths` are those of all parties with features, `owners` as in `DryRun`."""
    counts = {name: owners.get(name, rows) for name in widths}
    tables = {name: recipe.uplink.memory_bytes(counts[name], width) for name, width in widths.items()}
    others = [name for name in widths if name != label_party]
    if recipe.labels is Labels.SHARED:
        # Every party follows every stream, unless it is sent the decoded rows themselves.
        everyone = sum(tables.values())
        own = recipe.broadcast == "surrogates"
        return {name: tables[name] if own else everyone for name in others} | {label_party: everyone}
    if isinstance(recipe.schedule, OneWay):  # the label party keeps every code
        return dict.fromkeys(others, 0) | {label_party: 4 * sum(counts[name] * widths[name] for name in others)}
    held = {name: tables[name] + recipe.downlink.memory_bytes(counts[name], widths[name]) for name in others}
    return held | {label_party: sum(held.values())}


def workset_bytes(
    recipe: Recipe, label_party: PartyName, batch: int, rounds: int, widths: Mapping[PartyName, int]
) -> dict[PartyName, int]:
    """What cached steps keep, by party, of batches of so many rows."""
    schedule = recipe.schedule
    kept = min(schedule.capacity, rounds) if isinstance(schedule, CachedSteps) and schedule.reuse > 1 else 0
    # Rows are 8 bytes each; an embedding and its derivative 4 bytes a value.
    values = {name: 2 * 4 * width for name, width in widths.items() if name != label_party}
    held = {name: kept * batch * (8 + size) for name, size in values.items()}
    return held | {label_party: kept * batch * (8 + sum(values.values()))}


def _warn_of_small_savings(job: Job, first: Mapping[str, int], others: Mapping[str, int | None]) -> list[str]:
    """Where messages are so small that their headers are what they cost."""
    plain, ours = others["svfl"], job.divide_rows().rounds * sum(first.values())
    if job.recipe.name != "thin" or not plain or plain > _LITTLE * ours:
        return []
    return [
        f"thin saves little over svfl here ({format_bytes(ours)} against {format_bytes(plain)}): messages hold few "
        "values; use larger batches, or svfl"
    ]


def _warnings(job: Job) -> list[str]:
    found: list[str] = []
    for party in job.everyone:
        if party.features is None or party.preparation is not None:  # which has said what it left out
            continue
        flat = party.features.flatten(1)
        constant = int((flat == flat[0]).all(dim=0).sum())
        if constant:
            found.append(f"{party.name}: {constant} of {flat.shape[1]} columns are constant and carry no information")
        largest = float(flat.abs().max())
        if largest > 1000:
            found.append(f"{party.name}: values up to {largest:.3g}; standardise the columns first")
    return found


def format_dry_run(shown: DryRun) -> dict[str, Any]:
    """As `thinwire check --json` prints it."""
    return {**vars(shown), "all_rounds_bytes": shown.all_rounds_bytes}
