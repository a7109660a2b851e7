"""The public path of the types; they live in `thinwire.base.types`."""

from thinwire.base.types import *
from thinwire.base.types import __all__ as __all__
