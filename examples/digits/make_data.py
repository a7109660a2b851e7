"""Splits scikit-learn's handwritten digits among four parties and a label party, one file each.

Four quadrants of 4 x 4 pixels go to four parties, two as NPZ and two as CSV files; the label party has the
digits themselves. Every file has the rows in the same order.

    python make_data.py            writes into this folder
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

FOLDER = Path(__file__).parent


def main() -> None:
    images, digits = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8).astype(np.float32)
    test = np.arange(len(digits)) % 3 == 0
    quadrants = {
        "north_west": images[:, :4, :4],
        "north_east": images[:, :4, 4:],
        "south_west": images[:, 4:, :4],
        "south_east": images[:, 4:, 4:],
    }
    for name in ("north_west", "north_east"):
        pixels = quadrants[name].reshape(len(digits), -1)
        np.savez_compressed(FOLDER / f"{name}.npz", x=pixels[~test], x_test=pixels[test])
    for name in ("south_west", "south_east"):
        pixels = quadrants[name].reshape(len(digits), -1)
        header = ",".join(f"pixel_{index}" for index in range(pixels.shape[1]))
        for part, rows in (("train", ~test), ("test", test)):
            table = pixels[rows]
            np.savetxt(FOLDER / f"{name}_{part}.csv", table, "%g", ",", header=header, comments="")
    for part, rows in (("train", ~test), ("test", test)):
        np.savetxt(FOLDER / f"labels_{part}.csv", digits[rows], "%d", header="digit", comments="")
    print(f"wrote {int((~test).sum())} training and {int(test.sum())} test rows into {FOLDER}")


if __name__ == "__main__":
    main()
