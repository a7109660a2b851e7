"""`thinwire demo`: four parties learn to read digits together, by four methods, and what each sent."""

from __future__ import annotations

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


def demo(seed: int = 0, out: Path | None = None, as_json: bool = False) -> None:
    """Train on handwritten digits that are split among four parties, and compare what methods send."""
    from thinwire.report.folder import read_run, write_report
    from thinwire.storage import layout

    folder = out or new_folder("demo")
    began = perf_counter()
    results: list[dict[str, Any]] = []
    for recipe in _build_recipes():
        summary = run_job(_build_job(recipe, seed), folder / recipe.name).summary()
        before = results[0]["bytes"]["total"] if results else summary["bytes"]["total"]
        results.append({**summary, "times_fewer_bytes": before / summary["bytes"]["total"]})
    seconds = perf_counter() - began
    report = write_report([read_run(Path(result["run_dir"])) for result in results], folder / layout.REPORT)
    facts = {"epochs": EPOCHS, "seed": seed, "seconds": seconds, "report": str(report), "methods": results}
    print_result(facts, as_json, lambda: _print(results, seconds, report))


def _build_recipes() -> list[Recipe]:
    from thinwire.engine.compress import TopK
    from thinwire.engine.methods import celu, efvfl, svfl, thin

    return [svfl(), celu(capacity=5, reuse=5), efvfl(TopK(0.1), labels="private"), thin()]


def _build_job(recipe: Recipe, seed: int) -> Job:
    """Each party has a quarter of every image; a fifth party has the labels. The same weights for every recipe."""
    import torch
    from sklearn.datasets import load_digits

    from thinwire.engine.channel.link import Link
    from thinwire.engine.models import MLP, Adam, Cosine, LinearTop
    from thinwire.engine.programs.parties import FeatureParty, LabelParty
    from thinwire.job.job import Job

    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 8, 8)
    labels = torch.tensor(digits)
    test = torch.arange(len(labels)) % 3 == 0
    quarters = {
        "north_west": images[:, :4, :4],
        "north_east": images[:, :4, 4:],
        "south_west": images[:, 4:, :4],
        "south_east": images[:, 4:, 4:],
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parties = [
            FeatureParty(name, part[~test], MLP(16, hidden=[64], width=WIDTH), part[test])
            for name, part in quarters.items()
        ]
        top = LinearTop(WIDTH, classes=10)
    return Job(
        parties,
        LabelParty("registry", labels[~test], top, labels[test], fusion="sum"),
        recipe,
        optimizer=Adam(lr=Cosine(0.005)),
        batch_size=128,
        epochs=EPOCHS,
        seed=seed,
        link=Link(bandwidth_mbit=100, latency_ms=10),
        diagnostics=False,
    )


def _print(results: list[dict[str, Any]], seconds: float, report: Path) -> None:
    title = f"Digits in four quarters, private labels, {EPOCHS} epochs"
    headings = ("test\naccuracy", "bytes\nup", "bytes\ndown", "times fewer\nthan svfl", "seconds on\nthe link")
    table = build_table(title, ["method"], headings)
    for result in results:
        table.add_row(
            result["method"],
            f"{100 * result['test']['accuracy']:.1f} %",
            format_bytes(result["bytes"]["up"]),
            format_bytes(result["bytes"]["down"]),
            f"{result['times_fewer_bytes']:.1f}",
            f"{result['link_seconds']:.2f}",
        )
    print_plain(
        table,
        "1,198 training and 599 test digits of scikit-learn; a simulated link of 100 Mbit/s with a round trip of "
        "20 ms, computing time included. Bytes are of whole messages, as sent. "
        f"It took {format_seconds(seconds)} here.",
        f"report: {report}",
    )
