"""The public path of surrogates and their storage; they live in `thinwire.engine.streams`."""

from thinwire.engine.streams import Storage, Surrogate, blocks, release_pages

__all__ = ["Storage", "Surrogate", "blocks", "release_pages"]
