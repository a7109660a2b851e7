"""The public path of streams; they live in `thinwire.engine.streams`."""

from thinwire.engine.streams import *
from thinwire.engine.streams import __all__ as __all__
