"""How many bytes every method sends until it reads handwritten digits as well as asked."""

from __future__ import annotations

import torch

from thinwire.bench.digits import Digits
from thinwire.bench.rows import Row, middle, pair
from thinwire.compress import TopK, Uniform
from thinwire.job import train
from thinwire.methods import METHODS, celu, cvfl, efvfl, fedbcd, pbm, svfl, thin
from thinwire.recipe import Recipe

__all__ = ["recipes", "rows"]

_TARGET = 0.94
_EPOCHS = 20
_EVERY = 2  # rounds
_SEEDS = (0, 1, 2)


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
    return {name: found[name] for name in METHODS}


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
    return middle([pair(*two) for two in zip(ours, base, strict=True)]).row(name, help, "svfl", "bytes")


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
