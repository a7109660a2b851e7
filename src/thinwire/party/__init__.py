"""What a party does all day: `feature_program.py`, `label_program.py`."""

from thinwire.party.batches import Batches
from thinwire.party.control import Control
from thinwire.party.description import FeatureParty, LabelParty
from thinwire.party.feature_program import FeatureProgram
from thinwire.party.label_program import Evaluated, LabelProgram

__all__ = ["Batches", "Control", "Evaluated", "FeatureParty", "FeatureProgram", "LabelParty", "LabelProgram"]
