"""A scorecard over two parties on credit default: exchanges, bytes, and the score beside a plain linear model's.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/scorecard.py [--seeds 0,1,2,3,4]

A lender holds the person, the limit and the months of arrears, a bank the bills and payments. Every seed draws 24,000
training rows and 6,000 test rows. Coefficients are compared with scikit-learn's on the same weight of evidence.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import thinwire as tw

_CODES = {"SEX": 3, "EDUCATION": 7, "MARRIAGE": 4}
_LENDER = [*_CODES, "LIMIT_BAL", "AGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"]
_CARDS: dict[str, dict[str, Any]] = {
    "scorecard": {},
    "scorecard, monotone = false": {"monotone": False},
    "scorecard, min_iv = 0": {"min_iv": 0.0},
    "scorecard, inference = true": {"inference": True},
}


def read_tables() -> tuple[list[Any], Any]:
    """Each party's columns, and the labels."""
    file = Path(os.environ["THINWIRE_DATA"], "tabular", "uci_credit_card.parquet")
    table = pd.read_parquet(file).drop(columns="ID")
    labels = table.pop("default.payment.next.month").to_numpy().astype(np.int64)
    parts = [table[_LENDER], table.drop(columns=_LENDER)]
    return [part.to_numpy().astype(np.float32) for part in parts], labels


def measure(tables: list[Any], labels: Any, bottoms: list[Any], top: Any, rows: tuple[Any, Any]) -> dict[str, float]:
    training, test = rows
    parties = [
        tw.FeatureParty(name, x[training], bottom)
        for name, x, bottom in zip(("lender", "bank"), tables, bottoms, strict=True)
    ]
    bureau = tw.LabelParty("bureau", labels[training], top, loss=tw.losses.binary_cross_entropy)
    result = tw.train(tw.Job(parties, bureau, tw.methods.svfl(), epochs=60, metrics=[]), callbacks=[])
    outputs = sum(bottom(torch.from_numpy(x[test])) for x, bottom in zip(tables, bottoms, strict=True))
    found = {
        "AUC": roc_auc_score(labels[test], outputs[:, 0].numpy()),
        "exchanges": result.summary()["rounds"],
        "training MB": result.bytes.total / 1e6,
        "inference MB": result.ledger.total(kinds={tw.types.Kind.INFERENCE}).bytes / 1e6,
    }
    if isinstance(top, tw.learners.ScorecardTop):
        found["coefficient error"] = compare_centrally(tables, labels, bottoms, training)
    return found


def compare_centrally(tables: list[Any], labels: Any, cards: list[Any], training: Any) -> float:
    """The largest difference to scikit-learn's coefficients on the joined weight of evidence."""
    parts = [card.encode_kept(torch.from_numpy(x[training])) for x, card in zip(tables, cards, strict=True)]
    joined = torch.cat(parts, dim=1).double().numpy()
    kept = joined.any(0)
    central = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10, max_iter=1000)
    central.fit(joined[:, kept], labels[training])
    found = torch.cat([card.coefficients for card in cards]).numpy()[kept]
    return float(np.abs(found - central.coef_[0]).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    seeds = [int(seed) for seed in parser.parse_args().seeds.split(",")]
    tables, labels = read_tables()
    runs: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(labels))
        rows = order[:24_000], order[24_000:]
        scaled = [(x - x[rows[0]].mean(0)) / x[rows[0]].std(0) for x in tables]
        plain = [tw.learners.Linear(x.shape[1]) for x in tables]
        found = measure(scaled, labels, plain, tw.learners.RegressionTop(), rows)
        runs.setdefault("linear, columns as numbers", []).append(found)
        for name, settings in _CARDS.items():
            lender = tw.learners.Scorecard(tables[0].shape[1], fields_vocab=list(_CODES.values()), **settings)
            cards = [lender, tw.learners.Scorecard(tables[1].shape[1], **settings)]
            runs.setdefault(name, []).append(measure(tables, labels, cards, tw.learners.ScorecardTop(), rows))
    for name, several in runs.items():
        means = {key: fmean(one[key] for one in several) for key in several[0]}
        if "coefficient error" in means:
            means["coefficient error"] = max(one["coefficient error"] for one in several)
        print(name, {key: float(f"{value:.4g}") for key, value in means.items()})


if __name__ == "__main__":
    main()
