"""The public path of privacy; they live in `thinwire.engine.privacy`."""

from thinwire.engine.privacy import *
from thinwire.engine.privacy import __all__ as __all__
