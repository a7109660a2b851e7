"""Published methods, each one file and one composition of parts; and our own, `thin`."""

from thinwire.methods.celu import celu
from thinwire.methods.cvfl import cvfl
from thinwire.methods.efvfl import efvfl
from thinwire.methods.fedbcd import fedbcd
from thinwire.methods.pbm import pbm
from thinwire.methods.svfl import svfl
from thinwire.methods.thin import thin

METHODS = {method.__name__: method for method in (svfl, fedbcd, cvfl, efvfl, celu, pbm, thin)}

__all__ = ["METHODS", "celu", "cvfl", "efvfl", "fedbcd", "pbm", "svfl", "thin"]
