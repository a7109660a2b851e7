"""How many bytes every method sends until it reads handwritten digits as well as asked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits

from benchmarks.results import Row, compare, middle
from thinwire.engine.compress import TopK, Uniform
from thinwire.engine.methods import METHODS, celu, cvfl, efvfl, fedbcd, pbm, svfl, thin
from thinwire.engine.models import MLP, Adam, LinearTop
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.recipe import Recipe
from thinwire.job.job import Job
from thinwire.training.train import train

__all__ = ["Digits", "recipes", "rows"]

_WIDTH = 32
_TARGET = 0.94
_EPOCHS = 20
_EVERY = 2  # rounds
_SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Digits:
    """A quarter of each image a party, four of them, and a label party; 1,198 training and 599 test rows."""

    epochs: float = 20
    seed: int = 0
    optimizer: OptimizerSpec = Adam(lr=0.005)
    batch_size: int = 128

    def job(self, recipe: Recipe) -> Job:
        """The same first weights for every recipe."""
        pixels, digits = load_digits(return_X_y=True)
        images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 8, 8)
        labels = torch.tensor(digits)
        test = torch.arange(len(labels)) % 3 == 0
        quarters = {
            "north_west": images[:, :4, :4],
            "north_east": images[:, :4, 4:],
            "south_west": images[:, 4:, :4],
            "south_east": images[:, 4:, 4:],
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            parties = [
                FeatureParty(name, part[~test], MLP(16, hidden=[64], width=_WIDTH), part[test])
                for name, part in quarters.items()
            ]
            top = LinearTop(_WIDTH, classes=10)
        return Job(
            parties,
            LabelParty("registry", labels[~test], top, labels[test], fusion="sum"),
            recipe,
            optimizer=self.optimizer,
            batch_size=self.batch_size,
            epochs=self.epochs,
            seed=self.seed,
            diagnostics=False,
        )


def recipes() -> dict[str, Recipe]:
    """Every method with private labels, as it comes or as its paper uses it."""
    every = (
        svfl(),
        fedbcd(5),
        cvfl(Uniform(4), labels="private"),
        efvfl(TopK(0.1), labels="private"),
        celu(capacity=5, reuse=5),
        pbm(trials=64, beta=0.25),
        thin(),
    )
    found = {recipe.name: recipe for recipe in every}
    return {name: found[name] for name in METHODS if name in found}


def rows() -> list[Row]:
    """The median over the seeds of the ratios to svfl's bytes with the same seed."""
    torch.set_num_threads(1)
    others = recipes()
    base = _bytes_to_target(others.pop("svfl"))
    return [_row(name, _bytes_to_target(recipe), base) for name, recipe in others.items()]


def _row(name: str, ours: list[int], base: list[int]) -> Row:
    help = f"bytes to {100 * _TARGET:.0f} % of test digits, private labels, {len(_SEEDS)} seeds"
    if min(len(ours), len(base)) < len(_SEEDS):
        who = "svfl" if len(base) < len(_SEEDS) else name
        return Row(name, help, "svfl", "bytes", note=f"{who} did not get there in {_EPOCHS} epochs")
    return middle([compare(*two) for two in zip(ours, base, strict=True)]).row(name, help, "svfl", "bytes")


def _bytes_to_target(recipe: Recipe) -> list[int]:
    """With each seed, up to the first that does not get there."""
    found: list[int] = []
    for seed in _SEEDS:
        job = Digits(epochs=_EPOCHS, seed=seed).job(recipe)
        job.target, job.eval_every = ("accuracy", _TARGET), _EVERY
        job.noise_secret = bytes(32)  # these rows are public, and the figure is to repeat
        reached = train(job, callbacks=[]).summary()["target"]
        if reached["reached_round"] is None:
            break
        found.append(int(reached["bytes"]))
    return found
