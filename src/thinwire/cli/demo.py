"""`thinwire demo`: four parties learn to read digits together, by four methods; what each sent, and raw rows take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from thinwire.base.format import format_bytes, format_seconds
from thinwire.cli.output import build_table, print_plain, print_result
from thinwire.cli.train import new_folder, run_job

if TYPE_CHECKING:
    from thinwire.engine.recipe import Recipe
    from thinwire.job.job import Job

EPOCHS = 20
WIDTH = 32
MBIT, LATENCY_MS = 10.0, 50.0  # of the link, one way: one on which the difference is felt


def demo(seed: int = 0, out: Path | None = None, as_json: bool = False) -> None:
    """Train on handwritten digits split between four parties, and compare several methods."""
    from thinwire.report.folder import read_run, write_report
    from thinwire.storage import layout

    folder = out or new_folder("demo")
    began = perf_counter()
    results: list[dict[str, Any]] = []
    for recipe in _build_recipes():
        summary = run_job(_build_job(recipe, seed), folder / recipe.name).summary()
        before = results[0]["bytes"]["all"] if results else summary["bytes"]["all"]
        results.append({**summary, "times_fewer_bytes": before / summary["bytes"]["all"]})
    central = _train_in_one_place(_build_job(_build_recipes()[0], seed))
    seconds = perf_counter() - began
    report = write_report([read_run(Path(result["run_dir"])) for result in results], folder / layout.REPORT)
    facts = {"epochs": EPOCHS, "seed": seed, "seconds": seconds, "report": str(report), "methods": results}
    facts["raw_rows"] = central
    print_result(facts, as_json, lambda: _print(results, central, seconds, report))


def _build_recipes() -> list[Recipe]:
    from thinwire.engine.compress import RowScale, TopK
    from thinwire.engine.methods import celu, efvfl, svfl, thin

    recipes = [svfl(), celu(capacity=5, reuse=5), efvfl(TopK(0.1), labels="private"), thin()]
    return [replace(recipe, scoring=RowScale(8)) for recipe in recipes]  # evaluations take a quarter of the bytes


def _build_job(recipe: Recipe, seed: int) -> Job:
    """Each party has a quarter of every image; a fifth party has the labels. The same weights for every recipe.

    A third of the rows are test rows, a tenth of the others validation rows.
    """
    import torch
    from sklearn.datasets import load_digits

    from thinwire.engine.channel.link import Link
    from thinwire.engine.models import MLP, Adam, Cosine, LinearTop
    from thinwire.engine.programs.parties import FeatureParty, LabelParty
    from thinwire.job.job import Job

    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 8, 8)
    labels = torch.tensor(digits)
    number = torch.arange(len(labels))
    test = number % 3 == 0
    validation = ~test & (number % 10 == 1)
    train = ~test & ~validation
    quarters = {
        "north_west": images[:, :4, :4],
        "north_east": images[:, :4, 4:],
        "south_west": images[:, 4:, :4],
        "south_east": images[:, 4:, 4:],
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parties = [
            FeatureParty(
                name, part[train], MLP(16, hidden=[64], width=WIDTH), part[test], validation_features=part[validation]
            )
            for name, part in quarters.items()
        ]
        top = LinearTop(WIDTH, classes=10)
    return Job(
        parties,
        LabelParty("registry", labels[train], top, labels[test], fusion="sum", validation_labels=labels[validation]),
        recipe,
        optimizer=Adam(lr=Cosine(0.005)),
        batch_size=128,
        epochs=EPOCHS,
        seed=seed,
        link=Link(bandwidth_mbit=MBIT, latency_ms=LATENCY_MS),
        diagnostics=False,
    )


def _train_in_one_place(job: Job) -> dict[str, Any]:
    """What parties would send who give their rows away, gzipped, and what logistic regression makes of them."""
    import gzip

    import torch
    from sklearn.linear_model import LogisticRegression

    def join(rows: str) -> Any:
        return torch.cat([getattr(party, f"{rows}features").flatten(1) for party in job.parties], dim=1).numpy()

    model = LogisticRegression(max_iter=1000).fit(join(""), job.label_party.labels.numpy())
    accuracy = float(model.score(join("test_"), job.label_party.test_labels.numpy()))
    pixels = [(16 * join(rows)).round().astype("uint8").tobytes() for rows in ("", "validation_", "test_")]
    size = len(gzip.compress(b"".join(pixels)))
    return {"bytes": size, "link_seconds": 8 * size / (1e6 * MBIT) + LATENCY_MS / 1000, "accuracy": accuracy}


def _print(results: list[dict[str, Any]], central: dict[str, Any], seconds: float, report: Path) -> None:
    title = f"Digits in four quarters, private labels, {EPOCHS} epochs"
    headings = (
        "test\naccuracy",
        "bytes\nin all",
        "training\nalone",
        "times fewer\nthan svfl",
        "seconds on\nthe link",
    )
    table = build_table(title, ["method"], headings)
    for result in results:
        table.add_row(
            result["method"],
            f"{100 * result['test']['accuracy']:.1f} %",
            format_bytes(result["bytes"]["all"]),
            format_bytes(result["bytes"]["total"]),
            f"{result['times_fewer_bytes']:.1f}",
            f"{result['link_seconds']:.2f}",
        )
    before = results[0]["bytes"]["all"] / central["bytes"]
    accuracy = f"{100 * central['accuracy']:.1f} %"
    table.add_row(
        "raw rows", accuracy, format_bytes(central["bytes"]), "-", f"{before:.1f}", f"{central['link_seconds']:.2f}"
    )
    print_plain(
        table,
        "The data are scikit-learn's digits: a third are test rows, evaluated once; a tenth of the rest are "
        f"validation rows, which choose the model. Time is on a simulated link of {MBIT:g} Mbit/s with a round trip "
        f"of {2 * LATENCY_MS:g} ms, including computation. Bytes count every message as sent, including "
        "evaluations. The raw-rows baseline sends all pixels, gzipped, and fits logistic regression on them: a "
        f"table this small is cheaper to send than to train on together. The demo took {format_seconds(seconds)} on "
        "this machine.",
        f"report: {report}",
    )
