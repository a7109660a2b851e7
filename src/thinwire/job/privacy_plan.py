"""What single rows of the feature parties cost: circumstances, the ledger, and the rounds that a budget allows."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass

import numpy as np

from thinwire.base.errors import IncompatibleRecipe
from thinwire.base.types import PartyName
from thinwire.engine.compress import PoissonBinomial, RandomizedResponse
from thinwire.engine.privacy.accounting import (
    Budget,
    Exact,
    Exposure,
    Mechanism,
    Parties,
    PoissonBinomialRelease,
    PrivacyLedger,
    RandomizedResponseRelease,
    Uses,
)
from thinwire.engine.privacy.accounting.ledger import end_to_end_epsilon
from thinwire.engine.privacy.dp_bottom import DPBottom, Training, to_accounting
from thinwire.engine.programs.program import Batches
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import CachedSteps, LocalSteps, OneWay
from thinwire.job.settings import RunSettings


@dataclass(frozen=True)
class PrivacyPlan:
    """The same at every feature party of a job, and known to all: it follows from what they agreed on."""

    recipe: Recipe
    training: Training
    budget: Budget | None
    width: int
    parties: Parties

    def exposure(self) -> Exposure:
        compressor = self.recipe.uplink.compressor
        mechanism: Mechanism = Exact()
        if isinstance(compressor, PoissonBinomial) and self.recipe.is_noisy:
            mechanism = PoissonBinomialRelease(compressor.trials, compressor.beta, self.width)
        if isinstance(compressor, RandomizedResponse):
            mechanism = RandomizedResponseRelease(compressor.epsilon)
        answered = not isinstance(self.recipe.schedule, OneWay)
        return Exposure(mechanism, self.parties, to_accounting(self.training), answered)

    def ledger(self, party: PartyName, rows: int) -> PrivacyLedger:
        """Where nothing bounds what leaves, every row counts as shown from the start."""
        ledger = PrivacyLedger(party, self.exposure(), rows, self.budget)
        if not self.recipe.is_noisy:
            ledger.charge_release(np.arange(rows))
        return ledger

    def limit(self, settings: RunSettings, party: PartyName, rows: int, evaluated_rows: int) -> Batches:
        """The rounds of these rows that the budget allows; refuses a budget that nothing bounds."""
        self.ledger(party, 1)
        batches = settings.divide_rows(rows)
        return self.limit_batches(batches, settings.evaluation_interval(batches), evaluated_rows)

    def limit_batches(self, batches: Batches, eval_every: int, evaluated_rows: int) -> Batches:
        """As many of the rounds as the budget allows; refuses one that allows none."""
        if self.budget is None:
            return batches
        allowed = self._allowed(self.budget, batches, eval_every, evaluated_rows)
        if allowed == 0:
            raise IncompatibleRecipe(
                f"budget: epsilon {self.budget.epsilon:g} at delta {self.budget.delta:g} allows no round of "
                f"{self.recipe.name} with embeddings {self.width} wide; `thinwire privacy --epsilon "
                f"{self.budget.epsilon:g} --width {self.width} --parties {self.parties.noisy} --epochs 1` plans the "
                "noise that it needs"
            )
        return batches.limit(allowed)

    def _allowed(self, budget: Budget, batches: Batches, eval_every: int, evaluated_rows: int) -> int:
        def fits(rounds: int) -> bool:
            exposure, uses = self.exposure(), self._list_uses(rounds, batches, eval_every, evaluated_rows)
            spent = [end_to_end_epsilon(exposure, budget.observer, one, budget.delta) for one in uses]
            return max(spent) <= budget.epsilon

        return bisect(range(1, batches.rounds + 1), False, key=lambda rounds: not fits(rounds))

    def forecast(self, settings: RunSettings, batches: Batches, evaluated_rows: int) -> list[Uses]:
        """How often the worst-off rows will have been used when all these rounds are done."""
        return self._list_uses(batches.rounds, batches, settings.evaluation_interval(batches), evaluated_rows)

    def _list_uses(self, rounds: int, batches: Batches, eval_every: int, evaluated_rows: int) -> list[Uses]:
        """Of the training row that is used most, and of a row that evaluations look at, where there are any."""
        looks = 1 if isinstance(self.recipe.schedule, OneWay) else 1 + -(-rounds // eval_every)
        tested = [Uses(looks)] if evaluated_rows else []
        return [self._training_uses(rounds, batches), *tested]

    def _training_uses(self, rounds: int, batches: Batches) -> Uses:
        """Of the row that is used most."""
        visits = -(-rounds // batches.rounds_per_epoch)
        steps = visits * self._steps_a_visit() if isinstance(self.training, DPBottom) else 0
        return Uses(visits + int(self.recipe.warm_start), steps)

    def _steps_a_visit(self) -> int:
        match self.recipe.schedule:
            case CachedSteps() as cached:
                return cached.reuse
            case LocalSteps() as local:
                return local.steps
        return 1
