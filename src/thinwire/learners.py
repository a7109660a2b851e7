"""The public path of learners; they live in `thinwire.engine.models.learners`."""

from thinwire.engine.models.learners import *
from thinwire.engine.models.learners import __all__ as __all__
