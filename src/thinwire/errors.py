"""The public path of the errors; they live in `thinwire.base.errors`."""

from thinwire.base.errors import *
from thinwire.base.errors import __all__ as __all__
