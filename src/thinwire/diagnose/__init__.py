"""Why a recipe's score is below that of the same network trained in one place: which axis costs what."""

from thinwire.diagnose.axes import Variant, variants
from thinwire.diagnose.centralised import train_centrally
from thinwire.diagnose.diagnosis import Diagnosis
from thinwire.diagnose.running import Outcome, outcome, planned

__all__ = ["Diagnosis", "Outcome", "Variant", "outcome", "planned", "train_centrally", "variants"]
