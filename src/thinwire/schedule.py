"""The public path of schedules; they live in `thinwire.engine.schedule`."""

from thinwire.engine.schedule import *
from thinwire.engine.schedule import __all__ as __all__
