"""Why a recipe's score is below that of the same network trained in one place: which axis costs what."""

from thinwire.lab.ablation.ablation_runs import (
    AblationResult,
    Variant,
    list_variants,
    plan_runs,
    run_ablation,
    train_centrally,
)
from thinwire.lab.ablation.diagnosis import Diagnosis

__all__ = ["AblationResult", "Diagnosis", "Variant", "list_variants", "plan_runs", "run_ablation", "train_centrally"]
