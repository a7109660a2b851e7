"""Published methods, each one file and one composition of parts; and our own: `thin`, `boosting`, `once`."""

from thinwire.engine.methods.boosting import boosting
from thinwire.engine.methods.celu import celu
from thinwire.engine.methods.cvfl import cvfl
from thinwire.engine.methods.efvfl import efvfl
from thinwire.engine.methods.fedbcd import fedbcd
from thinwire.engine.methods.once import once
from thinwire.engine.methods.pbm import pbm
from thinwire.engine.methods.svfl import svfl
from thinwire.engine.methods.thin import thin

METHODS = {method.__name__: method for method in (svfl, fedbcd, cvfl, efvfl, celu, pbm, thin, boosting, once)}

__all__ = ["METHODS", "boosting", "celu", "cvfl", "efvfl", "fedbcd", "once", "pbm", "svfl", "thin"]
