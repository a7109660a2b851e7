"""The public path of surrogates; they live in `thinwire.engine.surrogates`."""

from thinwire.engine.surrogates import *
from thinwire.engine.surrogates import __all__ as __all__
