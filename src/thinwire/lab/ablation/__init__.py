"""Why a recipe's score is below that of the same network trained in one place: which axis costs what."""

from thinwire.lab.ablation.ablation_runs import Outcome, outcome, planned, train_centrally
from thinwire.lab.ablation.diagnosis import Diagnosis
from thinwire.lab.ablation.variants import Variant, variants

__all__ = ["Diagnosis", "Outcome", "Variant", "outcome", "planned", "train_centrally", "variants"]
