"""A small job on real data that scikit-learn brings along: handwritten digits, a quarter of each image a party."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits

from thinwire.job import Job
from thinwire.models import MLP, Adam, LinearTop
from thinwire.models.optimizers import OptimizerSpec
from thinwire.party import FeatureParty, LabelParty
from thinwire.recipe import Recipe

__all__ = ["Digits"]

_WIDTH = 32


@dataclass(frozen=True)
class Digits:
    """Four feature parties and a label party; 1,198 training and 599 test rows."""

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
