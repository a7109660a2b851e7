"""What training on a sample of the rows costs in score: boosted trees of two parties, from 1,000 rows to all.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/samples.py [--tables credit,covertype] [--seeds 0,1]
        [--sizes 1000,4000] [--out FILE]

A fifth of a table's rows, at most 50,000, are for testing, the same ones for every size. A sample is the first rows
of a permutation that the seed draws, so that each holds the smaller ones. Bytes are those of training.
Results go to FILE as they come (--out, build/samples.jsonl); the same command resumes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow.parquet as pq
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.defaults import Record, Records
from thinwire.engine.models.metrics import metric
from thinwire.lab.datasets.dataset_files import find_data_folder
from thinwire.lab.datasets.tabular_sets import BANK_MARKETING, COVTYPE, CREDIT_CARD, TabularSet

TABLES: dict[str, TabularSet] = {"credit": CREDIT_CARD, "bank": BANK_MARKETING, "covertype": COVTYPE}
SIZES = (1_000, 4_000, 16_000, 64_000, 256_000)
_TEST_SHARE, _TEST_MOST = 0.2, 50_000
_TEST_SEED = 0


def find_table(known: TabularSet) -> Path:
    folder = find_data_folder(None, known.source)
    places = (folder / place for place in known.source.places if place.endswith(".parquet"))
    return next(place for place in places if place.exists())


def count_test_rows(rows: int) -> int:
    return min(int(_TEST_SHARE * rows), _TEST_MOST)


def fit_sample(name: str, rows: int, seed: int) -> Record:
    """The score of a model of so many rows, on the table's test rows."""
    known = TABLES[name]
    frame = pq.read_table(find_table(known)).to_pandas()
    label = next(one for one in known.label if one in frame.columns)
    order = np.random.default_rng(_TEST_SEED).permutation(len(frame))
    held = count_test_rows(len(frame))
    train = np.random.default_rng(seed + 1).permutation(order[held:])[:rows]
    parties = {party: list(columns) for party, columns in known.parties.items()}
    model = tw.VerticalClassifier(
        parties=parties, label_party=list(parties)[1], model="boosted_trees", random_state=seed
    )
    columns = [column for names in parties.values() for column in names]
    model.fit(frame.iloc[train][columns], frame.iloc[train][label])
    test = frame.iloc[order[:held]]
    outputs = np.asarray(model.predict_proba(test[columns]))
    labels = np.searchsorted(model.classes_, test[label])
    measure = "auc" if len(model.classes_) == 2 else "accuracy"
    scored = torch.from_numpy(outputs[:, 1] if measure == "auc" else outputs)
    sent = model.result_.bytes
    return {
        "rows": len(train),
        "metric": measure,
        "score": round(float(metric(measure).compute(scored, torch.from_numpy(labels))), 5),
        "bytes": sent.total,
        "exchanges": model.result_.summary()["rounds"],
    }


def list_sizes(table: str, asked: Sequence[int]) -> list[int]:
    """Those that the table has rows for, and all of them."""
    rows = pq.read_metadata(find_table(TABLES[table])).num_rows
    most = rows - count_test_rows(rows)
    return [*(size for size in asked if size < most), most]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=lambda text: text.split(","), default=list(TABLES))
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in text.split(",")], default=list(SIZES))
    parser.add_argument("--out", type=Path, default=Path("build/samples.jsonl"))
    asked = parser.parse_args()
    records = Records(asked.out)
    print("| table | rows | score | MB |\n|---|---|---|---|")
    for table in asked.tables:
        for size in list_sizes(table, asked.sizes):
            found = [
                records.find(f"{table} {size} {seed}", partial(fit_sample, table, size, seed)) for seed in asked.seeds
            ]
            scores = [one["score"] for one in found]
            spread = f" ± {np.std(scores, ddof=1):.4f}" if len(scores) > 1 else ""
            sent = fmean(one["bytes"] for one in found) / 1e6
            print(f"| {table} | {found[0]['rows']:,} | {fmean(scores):.4f}{spread} | {sent:.3g} |", flush=True)


if __name__ == "__main__":
    main()
