"""Writes the example's tables: a real data set of 569 tumours, its columns divided between three organisations.

The Wisconsin breast cancer data (Wolberg, Street, Mangasarian 1995) comes with scikit-learn. Imaging measured the
means of ten properties of the cells' nuclei and their errors, the laboratory the worst values, the clinic knows
which tumours were malignant. Every table has the patient's number, so that all can see that their rows agree.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

HERE = Path(__file__).parent
TEST_EVERY = 4  # every fourth patient is for testing


def write(name: str, columns: list[str], patients: np.ndarray, values: np.ndarray) -> None:
    with (HERE / f"{name}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["patient", *columns])
        for patient, row in zip(patients, values, strict=True):
            rows.writerow([f"P{patient:04d}", *row])


def main() -> None:
    data = load_breast_cancer()
    patients = np.arange(1, len(data.data) + 1)
    testing = patients % TEST_EVERY == 0
    mean, deviation = data.data[~testing].mean(0), data.data[~testing].std(0)
    scaled = np.round((data.data - mean) / deviation, 4)
    names = [name.replace(" ", "_") for name in data.feature_names]
    malignant = (data.target == 0).astype(int)[:, None]
    tables = {
        "imaging": (names[:20], scaled[:, :20]),
        "laboratory": (names[20:], scaled[:, 20:]),
        "clinic": (["malignant"], malignant),
    }
    for party, (columns, values) in tables.items():
        write(f"{party}_train", columns, patients[~testing], values[~testing])
        write(f"{party}_test", columns, patients[testing], values[testing])
    print(f"{(~testing).sum()} training rows and {testing.sum()} test rows for {', '.join(tables)}")


if __name__ == "__main__":
    main()
