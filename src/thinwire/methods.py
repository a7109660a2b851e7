"""The public path of the methods; they live in `thinwire.engine.methods`."""

from thinwire.engine.methods import *
from thinwire.engine.methods import __all__ as __all__
