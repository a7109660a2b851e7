"""What a run was: its record, and one page about it."""
