"""One party of a run in a process of its own: it connects, agrees, trains, saves, and resumes after any kill."""
