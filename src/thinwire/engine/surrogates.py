"""The N x E estimate behind error feedback, and where tables that large live: another door to `thinwire.streams`."""

from thinwire.engine.streams import Storage, Surrogate, blocks, let_go

__all__ = ["Storage", "Surrogate", "blocks", "let_go"]
