"""A small job in a folder: two parties, one with an NPZ and one with a CSV file, and a label party."""

from __future__ import annotations

from pathlib import Path

import numpy as np

ROWS, TESTS = 96, 32

JOB = """
[job]
epochs = 2
batch_size = 32
metrics = ["accuracy"]

[recipe]
method = "efvfl"
compressor = { name = "TopK", fraction = 0.25 }
labels = "private"

[optimizer]
name = "adam"
lr = 0.02

[[party]]
name = "bank"
features = { file = "bank.npz", key = "x" }
test_features = { file = "bank.npz", key = "x_test" }
model = { name = "mlp", hidden = [8], width = 4 }

[[party]]
name = "shop"
features = { file = "shop.csv", columns = ["age", "visits"] }
test_features = { file = "shop_test.csv", columns = ["age", "visits"] }
model = { name = "linear", width = 4 }

[label_party]
name = "clinic"
labels = { file = "clinic.csv", column = "ill" }
test_labels = { file = "clinic_test.csv", column = "ill" }
top = { name = "linear_top", classes = 2 }
"""


def write_job(folder: Path, text: str = JOB) -> Path:
    """The job file, its data beside it: the label is whether the columns' sum is above 0."""
    rng = np.random.default_rng(0)
    bank, shop = rng.normal(size=(ROWS + TESTS, 3)), rng.normal(size=(ROWS + TESTS, 3))
    ill = (bank.sum(axis=1) + shop[:, :2].sum(axis=1) > 0).astype(int)
    np.savez(folder / "bank.npz", x=bank[:ROWS], x_test=bank[ROWS:])
    for name, rows in (("", slice(ROWS)), ("_test", slice(ROWS, None))):
        np.savetxt(folder / f"shop{name}.csv", shop[rows], "%.6f", ",", header="age,visits,spare", comments="")
        np.savetxt(folder / f"clinic{name}.csv", ill[rows], "%d", header="ill", comments="")
    path = folder / "job.toml"
    path.write_text(text)
    return path
