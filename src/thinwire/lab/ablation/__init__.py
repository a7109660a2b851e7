"""Why a recipe's score is below that of the same network trained in one place: which axis costs what."""

from thinwire.lab.ablation.axes import Variant, variants
from thinwire.lab.ablation.centralised import train_centrally
from thinwire.lab.ablation.diagnosis import Diagnosis
from thinwire.lab.ablation.running import Outcome, outcome, planned

__all__ = ["Diagnosis", "Outcome", "Variant", "outcome", "planned", "train_centrally", "variants"]
