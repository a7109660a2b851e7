"""What masks cost: a round of 4 parties, 4096 rows of 64 values, with and without a secure sum.

    OMP_NUM_THREADS=1 python benchmarks/secure_sum.py [--json] [--rounds 20] [--repeats 5]

The same symbols in either round, in one process, taken in turns; the ratio is the median over the repeats. The bar
is 1.5. Beside it, the bytes of a masked message against the bits that it must hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from time import perf_counter

import torch
from torch import nn

import thinwire as tw
from thinwire.base.process import share_memory_pool
from thinwire.engine.compress import Uniform
from thinwire.engine.privacy import SecureSum
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import Direct

PARTIES, ROWS, WIDTH, COLUMNS = 4, 4096, 64, 128


@dataclass(frozen=True)
class Cost:
    """Milliseconds a round, median."""

    what: str
    plain_ms: float
    secure_ms: float
    ratio: float
    message_bytes: float
    needed_bytes: float


def job(recipe: Recipe, rounds: int) -> tw.Job:
    torch.manual_seed(0)
    labels = torch.randint(0, 10, (ROWS,))
    parties = [
        tw.FeatureParty(f"p{k}", torch.randn(ROWS, COLUMNS), nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.Tanh()))
        for k in range(PARTIES)
    ]
    return tw.Job(
        parties,
        tw.LabelParty("lab", labels, nn.Linear(WIDTH, 10)),
        recipe,
        tw.SGD(0.01),
        epochs=rounds,
        eval_every=10 * rounds,
        diagnostics=False,
        effort="fast",
    )


def round_ms(recipe: Recipe, rounds: int) -> tuple[float, float]:
    """The median round, and the bytes of one message up."""
    times = [perf_counter()]
    result = tw.train(job(recipe, rounds), callbacks=[], on_round=lambda _: times.append(perf_counter()))
    steps = [1e3 * (b - a) for a, b in pairwise(times[2:])]
    up = [row for row in result.ledger.entries() if row["kind"] == "EMBEDDING"]
    return statistics.median(steps), sum(row["bytes"] for row in up) / sum(row["messages"] for row in up)


def cost(what: str, plain: Recipe, secure: Recipe, rounds: int, repeats: int) -> Cost:
    pairs = [(round_ms(plain, rounds), round_ms(secure, rounds)) for _ in range(repeats)]
    adding = secure.uplink.compressor.adding()
    bits = (PARTIES * (adding.top if adding else 0)).bit_length()
    return Cost(
        what,
        statistics.median(p[0] for p, _ in pairs),
        statistics.median(s[0] for _, s in pairs),
        statistics.median(s[0] / p[0] for p, s in pairs),
        pairs[0][1][1],
        ROWS * WIDTH * bits / 8,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    levels = replace(tw.methods.svfl(), uplink=Direct(Uniform(8, bounds=(-1, 1))))
    noisy = tw.methods.pbm(16, 0.25)
    found = [
        cost("8-bit levels", levels, replace(levels, aggregation=SecureSum()), asked.rounds, asked.repeats),
        cost("split learning against pbm, 16 trials", tw.methods.svfl(), noisy, asked.rounds, asked.repeats),
    ]
    if asked.json:
        print(json.dumps([asdict(line) for line in found], indent=2))
        return
    print(f"{PARTIES} parties, {ROWS} x {WIDTH}; a round in ms (bar for masks: 1.5x)")
    for line in found:
        print(
            f"  {line.what:38}  plain {line.plain_ms:6.2f}  secure {line.secure_ms:6.2f}  {line.ratio:.2f}x  "
            f" message {line.message_bytes:.0f} B, {line.message_bytes / line.needed_bytes:.3f}x of its bits"
        )


if __name__ == "__main__":
    share_memory_pool()
    main()
