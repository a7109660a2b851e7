"""Writes golden bodies: run once when a kind or coding is added; existing files are never written again.

python tests/engine/wire/make_golden.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from every import BOUNDED_INPUT, COMPRESSORS, generator
from thinwire.base.types import Kind
from thinwire.engine import wire
from thinwire.engine.compress import Directions, Identity
from thinwire.engine.compress.symbols import Counts, Levels, LevelSum, Masked, Symbols, UniformGrid, Zeros
from thinwire.engine.wire import Frame, pack_frame

FOLDER = Path(__file__).parent / "golden"


def examples() -> dict[str, Symbols]:
    x = torch.tanh(torch.randn(18, 7, generator=generator(11)))
    made: dict[str, Symbols] = {}
    # Compressors that came later, from Directions on, are last: the names of the others stay.
    first = COMPRESSORS.index(Directions(0.5))
    ordered = (*COMPRESSORS[:first], *BOUNDED_INPUT, *COMPRESSORS[first:])
    for number, compressor in enumerate(ordered):
        made[f"{number:02d}-{type(compressor).__name__}"] = compressor.compress(x, generator(12))
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        made[f"Identity-{str(dtype).removeprefix('torch.')}"] = Identity().compress(x.to(dtype), generator())
    made["Zeros"] = Zeros((3, 5))
    rng = np.random.default_rng(13)
    made["coding-zstd"] = Levels((3000,), np.tile(rng.integers(0, 4, 20), 150), 0.0, 1.0, 2)
    made["coding-range"] = UniformGrid((900,), rng.geometric(0.3, 900) - 3, 0.5)
    made["coding-range-shifted"] = UniformGrid((900,), rng.normal(0, 4000, 900).astype(np.int64), 0.5)
    made["coding-unary"] = UniformGrid((70,), rng.geometric(0.6, 70), 0.25)
    made["coding-sparse"] = UniformGrid((2500,), (rng.random(2500) < 0.02).astype(np.int64) * 7, 2.0)
    made["coding-constant"] = UniformGrid((4, 5), np.full(20, -3), 1.5)
    made["coding-packed-32"] = UniformGrid((9,), rng.integers(-(2**31), 2**31, 9), 1e-3)
    made["counts-masked"] = Counts((40,), rng.integers(0, 128, 40), 128, 16, 0.15, 1.0, 4)
    made["level-sum"] = LevelSum((40,), rng.integers(0, 46, 40), -1.0, 1.0, 4, 3, (1, 2, 3))
    made["masked"] = Masked((40,), rng.integers(0, 64, 40), 64, 5)
    places = np.rint(rng.normal([-3, 0, 9], [0.3, 0, 2], (300, 3))).astype(np.int64)
    made["coding-columns"] = UniformGrid((300, 3), places.ravel(), 0.5)
    steps = np.cumsum(rng.integers(0, 3, (2000, 2)), axis=1)
    made["coding-parents"] = UniformGrid((2000, 2), steps.ravel() - 2, 0.5)
    return made


def floats(symbols: Symbols) -> npt.NDArray[np.float64]:
    """What the symbols stand for; masked ones stand for nothing but themselves."""
    if isinstance(symbols, Masked):
        return symbols.values.astype(np.float64)
    found: npt.NDArray[np.float64] = symbols.to_tensor().double().numpy().reshape(-1)
    return found


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, symbols in examples().items():
        for effort in ("small", "fast"):
            file = FOLDER / f"{name}-{effort}.body"
            if not file.exists():
                file.write_bytes(wire.encode(symbols, effort))
        values = FOLDER / f"{name}.values"
        if not values.exists():
            values.write_bytes(floats(symbols).tobytes())
    frame = FOLDER / "frame-1.frame"
    if not frame.exists():
        frame.write_bytes(pack_frame(Frame(0x0123456789ABCDEF, 2, 0, Kind.DERIVATIVE, 4096, 1, b"body")))


if __name__ == "__main__":
    main()
