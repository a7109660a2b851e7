"""The public path of the codec; they live in `thinwire.engine.wire`."""

from thinwire.engine.wire import *
from thinwire.engine.wire import __all__ as __all__
