"""Boosted trees as bottom models on real tables: their score beside central trees, their bytes beside tuned svfl.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py search [--tables credit,bank] [--seeds 0]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py tune-svfl [--tables credit]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py judge [--tables credit] [--seeds 0,1,2,3,4]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py outputs [--tables credit] [--seeds 0]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py turns [--tables credit] [--seeds 0,1]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py interactions [--tables xor,credit] [--seeds 0,1]

The tables are those of benchmarks/defaults.py, each split between two companies.

`search` tries settings of the trees on validation rows alone, the same ones for every table. `tune-svfl` gives plain
split learning of networks 20 trials a table (learning rate, batch size, hidden layers, weight decay), also on
validation rows; the trial with the best score counts, and the bytes until its best evaluation. `judge` trains the job
that `thinwire init` writes and compares the delivered model on the test rows, seed by seed,
with scikit-learn's HistGradientBoostingClassifier on the joined table. Differences are means over seeds with a 95 %
bootstrap interval over test rows.

`outputs` compares what goes up: leaf numbers, which are exact, and outputs rounded to so many levels.

`turns` lets the parties answer one derivative together, or one after the other with a derivative of its own for each:
the recipe's messages and bytes, but without a protocol around them, and with a bias that stays. "two" are the table's
companies, for "three" the feature party's columns are dealt to two. One after the other the label party's own turn
costs no message, so that two parties need as many round trips as together, and three twice as many.

`interactions` compares top models: a sum, `interaction_top` with products of so many pairs, and a small network on
four outputs per party; beside LightGBM with the same settings and as many trees on the joined table. `xor` is a table
made up for it: the label is whether a column of one party and a column of the other have the same sign.

Results go to FILE as they come (--out, build/trees.jsonl); the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.defaults import (
    TABLES,
    Network,
    Record,
    Records,
    draw_scores,
    fit_baseline,
    format_interval,
    list_tables,
    write_settings,
    write_two,
)
from thinwire.base.process import share_memory_pool
from thinwire.engine.compress import Codebook, Compressor, StdGrid, Uniform
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.metrics import metric
from thinwire.engine.models.networks import BiasTop
from thinwire.engine.protocols.bottom import TreesBottom
from thinwire.engine.streams import ErrorFeedback
from thinwire.engine.wire.codec import encode
from thinwire.job.job_file import toml_text
from thinwire.job.job_loader import load_job

_TRIALS = 20
_NETWORKS: dict[str, Sequence[str]] = {
    "optimizer.lr": ("0.001", "0.003", "0.01", "0.03"),
    "optimizer.weight_decay": ("0.0", "0.0001", "0.001", "0.01"),
    "job.batch_size": ("64", "256", "1024"),
    "hidden": ("[]", "[64]", "[128]"),
}
_TEMPLATE = "trees"
_OFF = ("job.baselines=false", "job.importance=false")


# Plain split learning, tuned -------------------------------------------------------------------------------------


def list_network_trials() -> list[dict[str, str]]:
    """The same for every table: our defaults first, then drawn once."""
    rng = np.random.default_rng(2)
    found = [{"optimizer.lr": "0.003", "optimizer.weight_decay": "0.001", "job.batch_size": "256", "hidden": "[64]"}]
    while len(found) < _TRIALS:
        trial = {key: str(rng.choice(list(values))) for key, values in _NETWORKS.items()}
        found += [trial] if trial not in found else []
    return found


def write_svfl(path: Path) -> Path:
    """The job of networks that `init --model mlp` writes, under plain split learning."""
    text = path.read_text().replace('method = "thin"\nreuse = 1\n', 'method = "svfl"\n')
    path.write_text(text)
    return path


def try_network(path: Path, trial: dict[str, str]) -> Record:
    result = tw.train(load_job(path, [*_OFF, *write_settings(trial, path)]), callbacks=[])
    delivered = result.summary()["delivered"]
    row = next(one for one in result.history if one["round"] == delivered["round"])
    sent = row["bytes"]
    return {
        "trial": trial,
        "validation": delivered["value"],
        "round": delivered["round"],
        "training_bytes": sent["total"],
        "bytes": sent["total"] + sent.get("evaluation", 0),
    }


def tune_svfl(tables: Sequence[str], _: Sequence[int], records: Records) -> None:
    for table in tables:
        with TemporaryDirectory() as folder:
            path = write_svfl(TABLES[table](Path(folder)))
            for trial in list_network_trials():
                found = records.find(f"svfl {table} {json.dumps(trial)}", partial(try_network, path, trial))
                print(f"{table} {trial}: {found['validation']:.4f}, {found['bytes'] / 1e6:.2f} MB", flush=True)


# Trees ------------------------------------------------------------------------------------------------------------


def list_tree_trials() -> list[dict[str, Any]]:
    """A first setting, those that differ from it in one key, and faster ones with more regularisation."""
    first = {"shrinkage": 0.15, "leaves": 31, "l2": 1.0, "trees": 1, "down_step": 0.5}
    changes: list[dict[str, Any]] = [
        {"shrinkage": 0.1}, {"shrinkage": 0.25}, {"leaves": 16}, {"l2": 10.0}, {"trees": 2}, {"down_step": 1.0},
        {"curvature": 0.25}, {"shrinkage": 0.25, "l2": 10.0}, {"shrinkage": 0.25, "l2": 10.0, "leaves": 16},
        {"shrinkage": 0.2, "l2": 10.0}, {"shrinkage": 0.25, "l2": 30.0}, {"shrinkage": 0.4, "l2": 30.0},
    ]  # fmt: skip
    return [first, *({**first, **change} for change in changes)]


def write_trees(path: Path, trial: dict[str, Any] | None = None) -> Path:
    """The job that `init` writes, in this setting."""
    document = tomllib.loads(path.read_text())
    settings = dict(trial or {})
    if "down_step" in settings:
        document["recipe"]["down_step"] = settings.pop("down_step")
    for section in (*document["party"], document["label_party"]):
        section["model"] |= settings
    found = path.with_name("trees.toml")
    found.write_text(toml_text(document))
    return found


def try_trees(path: Path, trial: dict[str, Any], seed: int) -> Record:
    summary = tw.train(load_job(write_trees(path, trial), [f"job.seed={seed}", *_OFF]), callbacks=[]).summary()
    delivered = summary["delivered"]
    return {"trial": trial, "validation": delivered["value"], "round": delivered["round"], "bytes": summary["bytes"]}


def search(tables: Sequence[str], seeds: Sequence[int], records: Records) -> None:
    regrets: dict[str, list[float]] = {}
    for table in tables:
        with TemporaryDirectory() as folder:
            path = TABLES[table](Path(folder), _TEMPLATE)
            found: dict[str, float] = {}
            for trial in list_tree_trials():
                keys = {seed: f"trees {table} {json.dumps(trial)} {seed}" for seed in seeds}
                runs = [records.find(key, partial(try_trees, path, trial, seed)) for seed, key in keys.items()]
                found[json.dumps(trial)] = fmean(run["validation"] for run in runs)
                sent = fmean(run["bytes"]["all"] for run in runs) / 1e6
                print(f"{table} {trial}: {found[json.dumps(trial)]:.4f}, {sent:.2f} MB", flush=True)
        for name, value in found.items():
            regrets.setdefault(name, []).append(max(found.values()) - value)
    for name in sorted(regrets, key=lambda one: fmean(regrets[one])):
        each = ", ".join(f"{one:.4f}" for one in regrets[name])
        print(f"{fmean(regrets[name]):.4f}  {name}  ({each})")


# Judge: test rows, once a seed ------------------------------------------------------------------------------------


def judge_once(path: Path, seed: int) -> Record:
    """The delivered trees and scikit-learn's on the joined table: the same rows, gaps and categories as they are."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    job = load_job(write_trees(path), [f"job.seed={seed}", *_OFF])
    central = HistGradientBoostingClassifier(random_state=seed)
    found = {"central trees": fit_baseline(central, job, partial(list_tables, job))}
    result = tw.train(job, callbacks=[])
    with torch.no_grad():
        found["together"] = as_logits(Network(job).eval()(list_tables(job, "test_")))
    alone = HistGradientBoostingClassifier(random_state=seed)
    label = job.label_party
    found["label party alone"] = fit_baseline(alone, job, lambda rows: [getattr(label, f"{rows}features")])
    summary = result.summary()
    kept = {key: summary[key] for key in ("bytes", "delivered", "rounds")}
    return {**draw_scores(job, found), **kept}


def as_logits(outputs: Tensor) -> Tensor:
    """Of two classes where there is one logit, as a baseline's probabilities are."""
    return torch.cat([torch.zeros_like(outputs), outputs], dim=1) if outputs.shape[1] == 1 else outputs


def judge(tables: Sequence[str], seeds: Sequence[int], records: Records) -> None:
    for table in tables:
        with TemporaryDirectory() as folder:
            path = TABLES[table](Path(folder), _TEMPLATE)
            runs = [records.find(f"judge {table} {seed}", partial(judge_once, path, seed)) for seed in seeds]
        means = {name: fmean(run["scores"][name] for run in runs) for name in runs[0]["scores"]}
        listed = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
        print(f"{table} ({runs[0]['metric']}, {len(seeds)} seeds): {listed}")
        for name in means.keys() - {"together"}:
            print(f"  together - {name}: {format_interval([run['differences'][name] for run in runs])}")
        sent = fmean(run["bytes"]["all"] for run in runs)
        print(f"  {fmean(run['rounds'] for run in runs):.0f} exchanges, {sent / 1e6:.2f} MB in all")
        tuned = records.list(f"svfl {table} ")
        if tuned:
            best = max(tuned, key=lambda one: float(one["validation"]))
            ratio = best["bytes"] / sent
            print(
                f"  svfl's best of {len(tuned)} trials needed {best['bytes'] / 1e6:.1f} MB: {ratio:.0f} times as many"
            )


# What goes up -----------------------------------------------------------------------------------------------------


_UP: dict[str, Compressor] = {
    "leaf numbers": Codebook(64),
    "6 bits": Uniform(6),
    "4 bits": Uniform(4),
    "a quarter of a deviation": StdGrid(0.25),
}


def try_output(path: Path, up: str, seed: int) -> Record:
    job = load_job(write_trees(path), [f"job.seed={seed}", 'job.effort="small"', *_OFF])
    job.recipe = replace(job.recipe, uplink=ErrorFeedback(_UP[up]))
    summary = tw.train(job, callbacks=[]).summary()
    return {"validation": summary["delivered"]["value"], "bytes": summary["bytes"]["up"] / summary["rounds"]}


def compare_outputs(tables: Sequence[str], seeds: Sequence[int], records: Records) -> None:
    for table in tables:
        with TemporaryDirectory() as folder:
            path = TABLES[table](Path(folder), _TEMPLATE)
            for up, seed in product(_UP, seeds):
                found = records.find(f"outputs {table} {up} {seed}", partial(try_output, path, up, seed))
                print(f"{table}, {up}: {found['validation']:.4f}, {found['bytes'] / 1e3:.2f} kB up an exchange")


# Turns against together -------------------------------------------------------------------------------------------


class Taker:
    """A party whose trees follow a derivative, which reaches them as the recipe sends it."""

    def __init__(self, tables: Sequence[Tensor], like: BoostedTrees, vocabulary: Sequence[int], parties: int) -> None:
        self.trees = BoostedTrees(like.width, curvature=like.curvature, fields_vocab=vocabulary)
        self._bottom = TreesBottom(self.trees, tables[0], {}, parties)
        self._held_out = tables[1:]

    def embed(self) -> Tensor:
        return self._bottom.embed_all()

    def score(self) -> list[Tensor]:
        return [self.trees(x) for x in self._held_out]

    def follow(self, derivative: Tensor, recipe: tw.Recipe, rng: torch.Generator) -> int:
        """Adds a tree; the bytes of the derivative down and of the trees' outputs up."""
        before, rows = self.embed(), torch.arange(len(derivative))
        down = recipe.downlink.compressor.compress(derivative, rng)
        self._bottom.learn(rows, before, down.to_tensor().reshape(derivative.shape))
        up = recipe.uplink.compressor.compress(self.embed() - before, rng)
        return len(encode(down)) + len(encode(up))

    def follow_own(self, derivative: Tensor) -> int:
        self._bottom.learn(torch.arange(len(derivative)), self.embed(), derivative)
        return 0


def find_trees(party: tw.FeatureParty | tw.LabelParty) -> BoostedTrees:
    return cast(BoostedTrees, party.bottom)


def list_takers(job: tw.Job, parties: str) -> list[Taker]:
    """The label party last."""
    found: list[tuple[list[Tensor], list[int]]] = []
    for party in job.everyone:
        tables = [getattr(party, f"{rows}features") for rows in ("", "validation_", "test_")]
        deals = (
            [slice(0, None, 2), slice(1, None, 2)] if parties == "three" and party is not job.label_party else [...]
        )
        sizes = np.array(find_trees(party).fields_vocab, int)
        found += [([x[:, deal].contiguous() for x in tables], sizes[deal].tolist()) for deal in deals]
    like = find_trees(job.label_party)
    return [Taker(tables, like, sizes, len(found)) for tables, sizes in found]


def take_turns(path: Path, parties: str, seed: int, together: bool) -> Record:
    """As many trees of every party in either case; the evaluation with the best validation score counts."""
    job = load_job(write_trees(path), [f"job.seed={seed}", *_OFF])
    label, takers = job.label_party, list_takers(job, parties)
    bias = cast(BiasTop, label.top).bias.detach()
    order = list(range(len(takers)))
    groups = [order] if together else [[place] for place in order]
    rng, score = torch.Generator().manual_seed(seed), metric(job.metrics[0])
    sent, trips, history = 0, 0, []
    for exchange in range(1, int(job.epochs) + 1):
        for group in groups:
            outputs = sum((one.embed() for one in takers), bias).requires_grad_()
            derivative = torch.autograd.grad(label.loss(outputs, label.labels).mean(), outputs)[0]
            for place in group:
                own = place == order[-1]
                taker = takers[place]
                sent += taker.follow_own(derivative) if own else taker.follow(derivative, job.recipe, rng)
            trips += group != order[-1:]
        if exchange % 2 == 0:
            parts = zip(*(one.score() for one in takers), strict=True)
            held = [sum(part, bias) for part in parts]
            pairs = zip(held, (label.validation_labels, label.test_labels), strict=True)
            values = [score.compute(said, labels) for said, labels in pairs]
            history.append({"round_trips": trips, "bytes": sent, "validation": values[0], "test": values[1]})
    return {"history": history}


def turns(tables: Sequence[str], seeds: Sequence[int], records: Records) -> None:
    for table in tables:
        with TemporaryDirectory() as folder:
            path = TABLES[table](Path(folder), _TEMPLATE)
            for parties, together in product(("two", "three"), (True, False)):
                name = f"turns {table} {parties} {'together' if together else 'in turn'}"
                runs = [
                    records.find(f"{name} {seed}", partial(take_turns, path, parties, seed, together))["history"]
                    for seed in seeds
                ]
                best = [max(run, key=lambda one: float(one["validation"])) for run in runs]
                at = {f"after {2 * place}": fmean(run[place - 1]["test"] for run in runs) for place in (5, 10, 20)}
                listed = ", ".join(f"{when} {value:.4f}" for when, value in at.items())
                means = {key: fmean(one[key] for one in best) for key in ("test", "round_trips", "bytes")}
                print(
                    f"{name}: {means['test']:.4f} with {means['round_trips']:.0f} round trips and "
                    f"{means['bytes'] / 1e6:.2f} MB; exchanges: {listed}",
                    flush=True,
                )


# Interactions across parties --------------------------------------------------------------------------------------

_XOR_ROWS = 20_000
_TOPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the label party; of every party's trees
    "sum": ({}, {}),
    "network": ({"top": {"name": "mlp_top", "hidden": [16]}, "fusion": "concat"}, {"width": 4}),
    "1 pair": ({"top": {"name": "interaction_top", "pairs": 1}, "fusion": "concat"}, {}),
    "2 pairs": ({"top": {"name": "interaction_top", "pairs": 2}, "fusion": "concat"}, {}),
    "4 pairs": ({"top": {"name": "interaction_top", "pairs": 4}, "fusion": "concat"}, {}),
}


def write_xor(folder: Path, template: str = _TEMPLATE) -> Path:
    """Nothing of the label is in either company's columns alone."""
    sides = {"left": [f"left{i}" for i in range(5)], "right": [f"right{i}" for i in range(5)]}
    names = [name for columns in sides.values() for name in columns]
    drawn = dict(zip(names, np.random.default_rng(0).normal(size=(len(names), _XOR_ROWS)), strict=True))
    label = (drawn["left0"] * drawn["right0"] > 0).astype(int)
    return write_two(pa.table({**drawn, "same": label}), sides, "same", folder, template)


def write_top(path: Path, name: str) -> Path:
    """The job with this top model; a network's own weights need a learning rate, and two outputs for two classes."""
    document = tomllib.loads(write_trees(path).read_text())
    label, model = _TOPS[name]
    classes = document["label_party"]["top"]["width"]
    document["label_party"] |= label
    if name != "sum":
        document["label_party"]["top"]["classes"] = classes
    if name == "network":
        document["label_party"]["top"]["classes"] = max(2, classes)
        document["label_party"]["loss"] = "cross_entropy"
        document["optimizer"] = {"name": "adam", "lr": 0.03}
        model = {"width": max(4, classes)}
    for section in (*document["party"], document["label_party"]):
        section["model"] |= model
    path.with_name("top.toml").write_text(toml_text(document))
    return path.with_name("top.toml")


def try_top(path: Path, name: str, seed: int) -> Record:
    job = load_job(write_top(path, name), [f"job.seed={seed}", *_OFF])
    summary = tw.train(job, callbacks=[]).summary()
    return {"test": summary["test"][job.metrics[0]], "bytes": summary["bytes"]["all"], "rounds": summary["rounds"]}


def fit_joined(path: Path, seed: int) -> Record:
    """LightGBM on the joined table: the settings of our trees, and as many of them as two parties have at most."""
    from lightgbm import LGBMClassifier

    job = load_job(write_trees(path), [f"job.seed={seed}", *_OFF])
    label = job.label_party
    like, first = find_trees(label), 0
    coded: list[int] = []
    for party in job.everyone:
        coded += range(first, first + len(find_trees(party).fields_vocab))
        first += party.features.shape[1]
    model = LGBMClassifier(
        n_estimators=2 * int(job.epochs), learning_rate=like.shrinkage, num_leaves=like.leaves, reg_lambda=like.l2,
        min_child_samples=like.min_rows, n_jobs=1, random_state=seed, verbosity=-1,
    )  # fmt: skip
    train, test = (torch.cat(list_tables(job, rows), dim=1).numpy() for rows in ("", "test_"))
    model.fit(train, label.labels.numpy(), categorical_feature=coded)
    said = torch.log(torch.from_numpy(model.booster_.predict(test)).clamp(1e-12, 1))
    return {"test": metric(job.metrics[0]).compute(said.reshape(len(test), -1), label.test_labels)}


def interactions(tables: Sequence[str], seeds: Sequence[int], records: Records) -> None:
    for table in tables:
        with TemporaryDirectory() as folder:
            path = {**TABLES, "xor": write_xor}[table](Path(folder), _TEMPLATE)
            joined = [records.find(f"joined {table} {seed}", partial(fit_joined, path, seed)) for seed in seeds]
            print(f"{table} joined: {fmean(run['test'] for run in joined):.4f}", flush=True)
            for name in _TOPS:
                runs = [
                    records.find(f"top {table} {name} {seed}", partial(try_top, path, name, seed)) for seed in seeds
                ]
                means = {key: fmean(run[key] for run in runs) for key in ("test", "bytes", "rounds")}
                print(
                    f"{table} {name}: {means['test']:.4f}, {means['rounds']:.0f} exchanges, "
                    f"{means['bytes'] / 1e6:.2f} MB",
                    flush=True,
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {
        "search": search,
        "tune-svfl": tune_svfl,
        "judge": judge,
        "outputs": compare_outputs,
        "turns": turns,
        "interactions": interactions,
    }
    usual = {"judge": "0,1,2,3,4", "turns": "0,1", "interactions": "0,1"}
    parser.add_argument("what", choices=list(commands))
    parser.add_argument("--tables", default=None)
    parser.add_argument("--seeds", default=None)
    parser.add_argument("--out", type=Path, default=Path("build/trees.jsonl"))
    asked = parser.parse_args()
    seeds = [int(seed) for seed in (asked.seeds or usual.get(asked.what, "0")).split(",")]
    tables = asked.tables or ("xor,credit,covertype" if asked.what == "interactions" else ",".join(TABLES))
    commands[asked.what](tables.split(","), seeds, Records(asked.out))
    return 0


if __name__ == "__main__":
    share_memory_pool()
    sys.exit(main())
