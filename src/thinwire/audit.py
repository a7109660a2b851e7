"""The public path of leakage attacks; they live in `thinwire.lab.attacks`."""

from thinwire.lab.attacks import *
from thinwire.lab.attacks import __all__ as __all__
