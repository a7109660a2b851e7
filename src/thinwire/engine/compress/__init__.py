"""LOSSY: a tensor becomes symbols. One file for compressors of a kind; `wire/` makes the symbols bytes.

    symbols = TopK(0.01).compress(x, torch.Generator().manual_seed(0))
    symbols.to_tensor()

A compressor's numeric parameters may be schedules of the round (`Milestones`, `Diminishing`,
`DiminishingError`); the round comes in the `Hint`.
"""

from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, Remembers
from thinwire.engine.compress.directions import Directions
from thinwire.engine.compress.grids import RowScale, StdGrid
from thinwire.engine.compress.hex_lattice import HexLattice
from thinwire.engine.compress.identity import Cast, Identity
from thinwire.engine.compress.poisson_binomial import PoissonBinomial
from thinwire.engine.compress.quantize import QSGD, Sign, Uniform
from thinwire.engine.compress.randomness import Keystream
from thinwire.engine.compress.schedules import Diminishing, DiminishingError, Milestones
from thinwire.engine.compress.sparse import RandK, TopK
from thinwire.engine.compress.symbols import Symbols
from thinwire.engine.compress.then import Shorter, Then

COMPRESSORS: tuple[type[Compressor], ...] = (
    Identity,
    Cast,
    TopK,
    RandK,
    QSGD,
    Uniform,
    HexLattice,
    StdGrid,
    RowScale,
    Directions,
    Sign,
    PoissonBinomial,
    Then,
    Shorter,
)

__all__ = [
    "COMPRESSORS",
    "QSGD",
    "Cast",
    "Compressor",
    "Diminishing",
    "DiminishingError",
    "Directions",
    "ErrorBound",
    "HexLattice",
    "Hint",
    "Identity",
    "Keystream",
    "Milestones",
    "PoissonBinomial",
    "Promise",
    "RandK",
    "Remembers",
    "RowScale",
    "Shorter",
    "Sign",
    "StdGrid",
    "Symbols",
    "Then",
    "TopK",
    "Uniform",
]
