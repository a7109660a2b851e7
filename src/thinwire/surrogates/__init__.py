"""The N x E estimate behind error feedback, and where tables that large live: in memory, or in a file."""

from thinwire.surrogates.mapped import blocks, let_go
from thinwire.surrogates.storage import Storage
from thinwire.surrogates.surrogate import Surrogate

__all__ = ["Storage", "Surrogate", "blocks", "let_go"]
