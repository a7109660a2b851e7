"""The benchmark suite: every row a ratio of two things measured in the same run, thinwire's over the other."""

from thinwire.bench.rows import Row
from thinwire.bench.saved import Saved, read_saved, write_saved
from thinwire.bench.suite import BENCHES, Bench, measured

__all__ = ["BENCHES", "Bench", "Row", "Saved", "measured", "read_saved", "write_saved"]
