"""Tables as people have them, prepared at each party: types guessed, missing values imputed, words encoded.

preparation = Preparation.fit(training_rows)      # a pyarrow table, a data frame, a dict of columns
x = preparation.apply(new_rows)                   # float32 [N, preparation.width]
Preparation.from_json(preparation.to_json())      # the same one; nothing is ever unpickled
"""

from thinwire.data.prepare.preparation import LabelCoding, Preparation, Task
from thinwire.data.prepare.settings import Settings

__all__ = ["LabelCoding", "Preparation", "Settings", "Task"]
