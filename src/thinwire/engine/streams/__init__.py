"""One directed tensor flow and its state: streams, the surrogates behind error feedback, and where large tables live.

`Direct` and `ErrorFeedback` are settings, frozen values that a recipe holds; `open(flow)` makes one end of a stream.
"""

from thinwire.engine.streams.owners import OwnedRows, RowOwners
from thinwire.engine.streams.storage import Storage, blocks, make_table, release_pages, release_touched_pages
from thinwire.engine.streams.stream import Direct, ErrorFeedback, Flow, RoundSeeds, Rows, Stream, StreamSpec
from thinwire.engine.streams.surrogate import Surrogate

__all__ = ["Direct", "ErrorFeedback", "Flow", "RoundSeeds", "Rows", "Stream", "StreamSpec", "Surrogate"]
__all__ += ["OwnedRows", "RowOwners", "Storage", "blocks", "make_table", "release_pages", "release_touched_pages"]
