"""The public path of models; they live in `thinwire.engine.models`."""

from thinwire.engine.models import *
from thinwire.engine.models import __all__ as __all__
