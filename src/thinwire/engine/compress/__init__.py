"""LOSSY: a tensor becomes symbols. One file for compressors of a kind; `wire/` makes the symbols bytes.

    symbols = TopK(0.01).compress(x, torch.Generator().manual_seed(0))
    symbols.to_tensor()

A compressor's numeric parameters may be schedules of the round (`Milestones`, `Diminishing`,
`DiminishingError`); the round comes in the `Hint`.
"""

from thinwire.engine.compress.codebook import Codebook
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, Remembers
from thinwire.engine.compress.grids import Directions, RowScale, StdGrid
from thinwire.engine.compress.parameters import Diminishing, DiminishingError, Milestones, Refining
from thinwire.engine.compress.quantize import QSGD, HexLattice, PoissonBinomial, Sign, Uniform
from thinwire.engine.compress.randomized_response import RandomizedResponse
from thinwire.engine.compress.randomness import Keystream
from thinwire.engine.compress.sparse import Cast, Identity, RandK, TopK
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
    Codebook,
    Sign,
    PoissonBinomial,
    RandomizedResponse,
    Then,
    Shorter,
)

__all__ = ["COMPRESSORS", "QSGD", "Cast", "Codebook", "Directions", "HexLattice", "Identity", "PoissonBinomial"]
__all__ += ["RandK", "RandomizedResponse", "RowScale", "Shorter", "Sign", "StdGrid", "Then", "TopK", "Uniform"]
__all__ += ["Compressor", "ErrorBound", "Hint", "Keystream", "Promise", "Remembers", "Symbols"]
__all__ += ["Diminishing", "DiminishingError", "Milestones", "Refining"]
