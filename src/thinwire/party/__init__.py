"""What a party does all day: `feature_program.py`, `label_program.py`."""

from thinwire.party.batches import Batches
from thinwire.party.feature_program import FeatureProgram
from thinwire.party.label_program import EvaluationOutputs, LabelProgram
from thinwire.party.parties import FeatureParty, LabelParty
from thinwire.party.program import Control

__all__ = ["Batches", "Control", "EvaluationOutputs", "FeatureParty", "FeatureProgram", "LabelParty", "LabelProgram"]
