"""LOSSY: a tensor becomes symbols. One file a compressor; `wire/` makes the symbols bytes.

    symbols = TopK(0.01).compress(x, torch.Generator().manual_seed(0))
    symbols.to_tensor()

A compressor's numeric parameters may be schedules of the round (`Milestones`, `Diminishing`,
`DiminishingError`); the round comes in the `Hint`.
"""

from thinwire.compress.compressor import Compressor, ErrorBound, Hint, Promise, Remembers
from thinwire.compress.directions import Directions
from thinwire.compress.hex_lattice import HexLattice
from thinwire.compress.identity import Cast, Identity
from thinwire.compress.poisson_binomial import PoissonBinomial
from thinwire.compress.qsgd import QSGD
from thinwire.compress.rand_k import RandK
from thinwire.compress.randomness import Keystream
from thinwire.compress.row_scale import RowScale
from thinwire.compress.schedules import Diminishing, DiminishingError, Milestones
from thinwire.compress.sign import Sign
from thinwire.compress.std_grid import StdGrid
from thinwire.compress.symbols import Symbols
from thinwire.compress.then import Shorter, Then
from thinwire.compress.top_k import TopK
from thinwire.compress.uniform import Uniform

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
