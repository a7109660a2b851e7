"""A recipe: one method as one frozen value on the four axes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from thinwire.base.errors import BadParameter, IncompatibleRecipe
from thinwire.engine.compress import Cast, Compressor, Identity, PoissonBinomial, Promise, RowScale, StdGrid
from thinwire.engine.compress.parameters import check_number, check_whole
from thinwire.engine.privacy import Labels, Plain, SecureSum
from thinwire.engine.privacy.defences import Defence, NoDefence
from thinwire.engine.schedule import (
    CachedSteps,
    EveryBatch,
    LocalSteps,
    OneWay,
    Overlap,
    Plan,
    Schedule,
    UpdateFirstPlan,
)
from thinwire.engine.streams import ErrorFeedback, StreamSpec


@dataclass(frozen=True)
class Recipe:
    """A method as one value: what is sent, when, and who sees what. `tw.methods` builds the published ones.

    Args:
        name: shown in tables and reports.
        uplink: how embeddings go up: `Direct` or `ErrorFeedback`.
        downlink: how derivatives go down.
        top: how the top model's parameters go down, under shared labels.
        schedule: when parties exchange and when they take local steps.
        labels: `Labels.PRIVATE` or `Labels.SHARED`.
        aggregation: `Plain()`, or `SecureSum()` to show the label party only the sum.
        defence: protects labels in the derivatives that go down.
        order: "exchange_first", or "update_first": update from the surrogates, then send the new embeddings.
        broadcast: "symbols", or "surrogates": the batch's decoded rows go down instead of the symbols.
        warm_start: surrogates start at C(h) of all rows instead of 0.
        on_outage: "wait", or "continue": train on cached exchanges while a party is away.
        warm_passes: passes of the label party alone over the filled surrogates, before the first exchange.
        scoring: compressor for rows that are only scored: validation and test rows, predictions.
        evaluation_step: send only changes of validation rows, in steps of so many standard deviations.

    Raises:
        IncompatibleRecipe: raised by `check`, with what to use instead.

    Examples:
        >>> recipe = tw.methods.svfl()
        >>> recipe.name, recipe.labels.value
        ('svfl', 'private')
        >>> recipe.check(parties=2, fusion="sum")
    """

    name: str
    uplink: StreamSpec
    downlink: StreamSpec
    top: StreamSpec  # the top model's parameters, under shared labels
    schedule: Schedule
    labels: Labels
    aggregation: Plain | SecureSum = Plain()
    defence: Defence = NoDefence()  # of the labels, where only derivatives go down
    order: str = "exchange_first"  # or "update_first": learn from the surrogates, then send the new embeddings
    broadcast: str = "symbols"  # or "surrogates": the batch's decoded rows go down, not the symbols
    warm_start: bool = False  # surrogates start at C(h) of all rows, not at 0
    on_outage: str = "wait"  # or "continue": learn from cached exchanges while a party is away
    warm_passes: int = 0  # of the label party alone over the filled surrogates, before the first exchange
    scoring: Compressor = Identity()  # embeddings of rows that are only scored: test rows, predictions
    evaluation_step: float | None = None  # of validation rows only changes travel, in so many deviations

    @property
    def repeatable(self) -> bool:
        """Does the same job give the same model bit for bit?"""
        filling = isinstance(self.schedule, CachedSteps) and self.schedule.overlap is Overlap.FILLING
        return not filling and self.on_outage == "wait"

    def open_plan(self, seed: int, rows: int) -> Plan:
        """What a party does in each round of a job of so many rows."""
        if self.order == "update_first" and isinstance(self.schedule, EveryBatch | LocalSteps):
            return UpdateFirstPlan(self.schedule)
        return self.schedule.open(seed, rows)

    @property
    def is_charged(self) -> bool:
        """Does every release of a row go through its owner's privacy ledger?"""
        return isinstance(self.aggregation, SecureSum) or self.uplink.compressor.protects_alone

    @property
    def is_noisy(self) -> bool:
        """Do embeddings leave with noise that a guarantee can be made from?"""
        compressor = self.uplink.compressor
        in_a_sum = isinstance(compressor, PoissonBinomial) and isinstance(self.aggregation, SecureSum)
        return in_a_sum or compressor.protects_alone

    def check(self, parties: int, fusion: str, batches: str = "derived") -> None:
        """Refuses what cannot work with this many feature parties and such batches, and says what to use."""
        if self.order not in ("exchange_first", "update_first"):
            raise BadParameter(f"order must be 'exchange_first' or 'update_first', got {self.order!r}")
        if self.broadcast not in ("symbols", "surrogates"):
            raise BadParameter(f"broadcast must be 'symbols' or 'surrogates', got {self.broadcast!r}")
        self._check_schedule(batches)
        self._check_outage()
        self._check_feedback()
        self._check_scoring()
        if self.labels is Labels.SHARED and not isinstance(self.defence, NoDefence):
            raise IncompatibleRecipe(
                f"{type(self.defence).__name__} hides labels, but shared labels are sent to every party; use "
                "labels='private', or no defence"
            )
        self._check_own_noise()
        if isinstance(self.aggregation, SecureSum):
            self._check_secure_sum(self.aggregation, parties, fusion)
        elif self.uplink.compressor.promise is Promise.UNBIASED:
            raise IncompatibleRecipe(
                f"{self.uplink.compressor} protects only inside a secure sum, with noise from a party's "
                "own secret; use pbm"
            )

    def _check_schedule(self, batches: str) -> None:
        if isinstance(self.schedule, CachedSteps) and self.schedule.overlap is Overlap.AHEAD and batches != "derived":
            raise IncompatibleRecipe(
                "overlap='ahead' sends the next batch's embedding before the label party announces its rows; use "
                "batches='derived', or another overlap"
            )
        shared = self.labels is Labels.SHARED
        if shared and not isinstance(self.schedule, LocalSteps):
            raise IncompatibleRecipe(
                "cached steps reuse derivatives, and with shared labels none are sent; use labels='private', or "
                "local_steps"
            )
        if not shared and isinstance(self.schedule, LocalSteps):
            raise IncompatibleRecipe(
                "with private labels a feature party cannot compute its own gradient, so local steps on a batch "
                "need cached ones: use fedbcd, celu or thin, or labels='shared'"
            )

    def _check_outage(self) -> None:
        if self.on_outage not in ("wait", "continue"):
            raise BadParameter(f"on_outage must be 'wait' or 'continue', got {self.on_outage!r}")
        if self.on_outage == "wait":
            return
        if isinstance(self.aggregation, SecureSum):
            raise IncompatibleRecipe(
                "on_outage='continue' would continue without a party, but a secure sum needs all of them; use "
                "on_outage='wait'"
            )
        if not isinstance(self.schedule, CachedSteps) or self.schedule.reuse == 1:
            raise IncompatibleRecipe(
                "on_outage='continue' trains on cached exchanges while a party is disconnected; use celu, or thin "
                "with a higher reuse, or on_outage='wait'"
            )

    def _check_feedback(self) -> None:
        feedback = isinstance(self.uplink, ErrorFeedback)
        if self.order == "update_first":
            self._check_update_first(feedback)
        if self.warm_start and not feedback:
            raise IncompatibleRecipe("warm_start fills surrogates; use efvfl or thin")
        check_whole(self, "warm_passes", 0, 10_000)
        if self.warm_passes and not (self.warm_start and self.labels is Labels.PRIVATE):
            raise IncompatibleRecipe("warm_passes learn from filled surrogates; use warm_start and private labels")
        if self.broadcast == "surrogates" and not (feedback and self.labels is Labels.SHARED):
            raise IncompatibleRecipe("broadcast='surrogates' needs error feedback and shared labels")
        if isinstance(self.downlink, ErrorFeedback) and self.downlink.scope == "table":
            raise IncompatibleRecipe("derivatives exist for the batch's rows only; use scope='rows' on the downlink")

    def _check_update_first(self, feedback: bool) -> None:
        if not feedback:
            raise IncompatibleRecipe("order='update_first' learns from surrogates; use efvfl")
        if not isinstance(self.schedule, EveryBatch | LocalSteps):
            raise IncompatibleRecipe(
                "order='update_first' learns from the surrogates before anything is exchanged, so that there is "
                "nothing to overlap with and no exchange to cache; use order='exchange_first', or efvfl's schedule"
            )
        if not self.warm_start:
            raise IncompatibleRecipe(
                "order='update_first' begins by learning from surrogates, which the papers start at C(h) of all "
                "rows; use warm_start=True, or order='exchange_first'"
            )

    def _check_scoring(self) -> None:
        check_number(self, "evaluation_step", above=0, up_to=10, optional=True)
        if self.evaluation_step is not None and self.is_charged:
            raise IncompatibleRecipe(
                "evaluation_step would send changes of a party's own embeddings without the noise or the sum that "
                "hides them in training; leave it out"
            )
        if self.evaluation_step is not None and isinstance(self.schedule, OneWay):
            raise IncompatibleRecipe(
                "evaluation_step sends changes from one evaluation to the next, and once sends validation codes a "
                "single time; leave it out"
            )
        if isinstance(self.scoring, Identity):
            return
        if self.is_charged:
            raise IncompatibleRecipe(
                f"scoring={self.scoring} would send a party's own embeddings without the noise or the sum that hides "
                "them in training; leave scoring out"
            )
        by_row = isinstance(self.scoring, (Cast, RowScale, StdGrid))
        if not by_row or (isinstance(self.scoring, RowScale | StdGrid) and not self.scoring.is_fixed):
            raise IncompatibleRecipe(
                f"scoring={self.scoring}: the score of a row must not depend on the other rows in its message; use "
                "Cast, or RowScale with one number of bits, or StdGrid with a fixed scale, not stochastic"
            )

    def _check_own_noise(self) -> None:
        others = {"downlink": self.downlink.compressor, "top": self.top.compressor}
        if self.uplink.compressor.protects_alone and not isinstance(self.schedule, OneWay):
            raise IncompatibleRecipe(
                f"{self.uplink.compressor} is for codes of rows that are sent once; use once(noise=...) with bins"
            )
        for name, compressor in others.items():
            if compressor.protects_alone:
                raise IncompatibleRecipe(f"{name}: {compressor} is for codes of rows; use once(noise=...) with bins")

    def _check_secure_sum(self, secure: SecureSum, parties: int, fusion: str) -> None:
        if fusion != "sum":
            raise IncompatibleRecipe(f"secure sum adds embeddings; use fusion='sum', not {fusion!r}")
        if self.uplink.compressor.adding() is None:
            raise IncompatibleRecipe(
                f"SecureSum adds integers on one scale; {self.uplink.compressor}'s symbols are not additive. Use "
                "PoissonBinomial, Uniform with bounds, or StdGrid with a fixed scale and a limit"
            )
        if isinstance(self.uplink, ErrorFeedback) and self.uplink.scope == "table":
            raise IncompatibleRecipe("secure sum masks the batch's rows; use scope='rows'")
        if self.order == "update_first" or self.broadcast == "surrogates":
            raise IncompatibleRecipe(
                "under secure sum there is one surrogate, that of the sum; use order='exchange_first' and "
                "broadcast='symbols'"
            )
        if isinstance(self.schedule, CachedSteps) and self.schedule.overlap is Overlap.FILLING:
            raise IncompatibleRecipe(
                "overlap='filling' would make the noise depend on timing; use overlap=True or 'ahead'"
            )
        if parties < secure.min_parties:
            raise IncompatibleRecipe(
                f"secure sum needs {secure.min_parties} feature parties, there are {parties}: with fewer, one "
                "party's values could be computed from the sum. Add parties, or use a recipe without a secure sum"
            )

    def describe(self) -> dict[str, Any]:
        """The recipe as plain data, canonical: what `digest` is over."""
        described = _plain(self)
        assert isinstance(described, dict)  # noqa: S101
        if isinstance(self.scoring, Identity):
            del described["scoring"]  # digests are older than it
        if not self.warm_passes:
            del described["warm_passes"]
        if self.evaluation_step is None:
            del described["evaluation_step"]
        if self.order == "update_first":
            described["order"] = "update_first, sending h of the new weights"  # older runs sent h of the old ones
        return described

    def digest(self) -> str:
        """SHA-256 of the canonical description; parties compare it when they connect."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        text = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _is_unsaid(field: Field[Any], value: Any) -> bool:
    """Digests are older than some fields: at their default they are left out."""
    return bool(field.metadata.get("newer")) and value == field.default


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        shown = [field for field in fields(value) if not _is_unsaid(field, getattr(value, field.name))]
        parts = {field.name: _plain(getattr(value, field.name)) for field in shown}
        return {"is": type(value).__name__, **parts}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value
