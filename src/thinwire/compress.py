"""The public path of compressors; they live in `thinwire.engine.compress`."""

from thinwire.engine.compress import *
from thinwire.engine.compress import __all__ as __all__
