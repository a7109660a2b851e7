"""Bytes as the papers count them, beside which the report shows the bytes that were really sent.

efvfl   the uplink alone: 4 bytes a value, times the share kept (top-k, its indices left out) or (bits + 1) / 32
cvfl    every party's symbols and the top model to each of the M parties: M (B sum P_m + |theta_0|) at b bits; in its
        private variant (Q = 1) symbols up and plain derivatives down
pbm     log2 M + log2 b bits a value up, plain derivatives down
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from thinwire.engine.compress import QSGD, Compressor, HexLattice, Identity, PoissonBinomial, TopK, Uniform
from thinwire.engine.privacy import Labels
from thinwire.job.job import Job
from thinwire.lab.papers.schema import Formula

_PLAIN = 32  # bits of a float


@dataclass(frozen=True)
class PaperBytes:
    """What a paper's formula says of one job."""

    formula: Formula
    parties: int
    width: int  # of all parties' embeddings together
    top_parameters: int
    bits: float  # a value, as the paper counts the compressor
    shared: bool  # labels
    trials: int

    @classmethod
    def of(cls, formula: Formula | None, job: Job) -> PaperBytes | None:
        """None where the paper has no formula, or none for this compressor."""
        compressor = job.recipe.uplink.compressor
        bits = paper_bits(compressor)
        if formula is None or bits is None:
            return None
        widths = job.check()
        return cls(
            formula,
            parties=len(job.parties),
            width=sum(widths[party.name] for party in job.parties),
            top_parameters=sum(parameter.numel() for parameter in job.label_party.top.parameters()),
            bits=bits,
            shared=job.recipe.labels is Labels.SHARED,
            trials=compressor.trials if isinstance(compressor, PoissonBinomial) else 1,
        )

    def after(self, rows: int, rounds: int) -> float:
        """Bytes after this many rounds, which took this many rows in all."""
        values = rows * self.width
        if self.formula == "efvfl":
            return values * self.bits / 8
        if self.formula == "cvfl" and self.shared:
            return self.parties * (values + rounds * self.top_parameters) * self.bits / 8
        if self.formula == "cvfl":
            return values * (self.bits + _PLAIN) / 8
        up = log2(self.parties) + log2(self.trials) if self.trials > 1 else _PLAIN
        return values * (up + _PLAIN) / 8


def paper_bits(compressor: Compressor) -> float | None:
    """Bits a value, as the papers say it; None for compressors they do not have."""
    match compressor:
        case Identity():
            return float(_PLAIN)
        case TopK(fraction=float() as fraction):
            return _PLAIN * fraction
        case QSGD(bits=int() as bits):
            return bits + 1.0  # a sign too
        case Uniform(bits=int() as levels):
            return float(levels)
        case HexLattice(bits=int() | float() as cells):
            return float(cells)
        case PoissonBinomial(trials=trials):
            return log2(trials + 1)
    return None
