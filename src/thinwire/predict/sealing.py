"""How a feature party's embeddings leave: by the recipe, its privacy ledger, and the run that it goes on from."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.conversations.context import Seat
from thinwire.conversations.sealing import Sealing
from thinwire.job.privacy_plan import PrivacyPlan
from thinwire.job.program_factory import derive_run_number
from thinwire.predict.charged import PredictionCharges, spent_in_training
from thinwire.predict.halves import Plainly, Sealed, Way
from thinwire.predict.run_folder import RunFolder
from thinwire.privacy import Identity, SecureSum
from thinwire.recipe import Recipe
from thinwire.transport.simulated import Simulation
from thinwire.types import PartyName
from thinwire.wire.entropy import Effort

__all__ = ["Counted", "Leaving", "Means", "leaving", "seat_of"]


@dataclass(frozen=True)
class Counted:
    """Where a table's rows stand in the ledger: among the run's own, or in one of their own."""

    of: str = "rows"  # the run's training rows, test rows behind them; otherwise the digest of another table
    offset: int = 0
    rows: int = 0  # in that ledger


@dataclass(frozen=True)
class Leaving:
    """A way, and what it needs before it can be used: keys, and numbers that were not used."""

    way: Way
    sealing: Sealing | None = None
    charges: PredictionCharges | None = None

    def close(self) -> None:
        if self.charges is not None:
            self.charges.close()

    @property
    def next_number(self) -> int:
        return 0 if self.charges is None else self.charges.next_number


@dataclass(frozen=True)
class Means:
    """What a secure sum needs: the run's folder, which remembers what was spent, and who this party is."""

    folder: RunFolder
    plan: PrivacyPlan
    counted: Counted
    identity: Identity


def leaving(seat: Seat, means: Means | None) -> Leaving:
    """Plain embeddings, or sealed ones where the recipe says so."""
    aggregation = seat.recipe.aggregation
    if not isinstance(aggregation, SecureSum) or means is None:
        return Leaving(Plainly(seat))
    folder, counted = means.folder, means.counted
    ledger = means.plan.ledger(seat.me, counted.rows)
    if counted.of == Counted.of:
        spent_in_training(folder.tensors(seat.me, seat.run), ledger, seat.me)
    log = folder.charges(seat.me)
    charges = PredictionCharges(log, ledger, counted.of, counted.offset, folder.files.lines(log))
    secret, nonce = folder.secret(seat.me), f"{folder.run} prediction"
    sealing = Sealing(seat, aggregation, means.identity, secret, charges, nonce)
    return Leaving(Sealed(seat, sealing), sealing, charges)


def seat_of(
    me: PartyName, label_party: PartyName, features: tuple[PartyName, ...], recipe: Recipe, seed: int, effort: Effort
) -> Seat:
    """A seat of which only the names, the recipe and the codec are used: questions have a way of their own."""
    run = derive_run_number(recipe, seed, features)
    silent = Simulation([*features, label_party], run, label_party=label_party).channel(me)
    return Seat(me, label_party, features, silent, recipe, rows=1, seed=seed, run=run, effort=effort)
