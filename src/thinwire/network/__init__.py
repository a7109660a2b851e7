"""One party of a run in a process of its own: it connects, agrees, trains, saves, and goes on after any failure."""
