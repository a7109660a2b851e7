"""Readers: a party's own file as float32 features [N, ...] or labels [N].

Whatever is wrong with a file is refused with its name, the column and the row; nothing is guessed, and
nothing is ever unpickled.
"""

from thinwire.data.readers import Values, read_features, read_labels

__all__ = ["Values", "read_features", "read_labels"]
