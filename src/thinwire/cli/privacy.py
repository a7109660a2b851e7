"""`thinwire privacy`: what a job, or a noisy secure sum, protects, from whom; or the noise that an epsilon needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.output import build_table, format_epsilon, print_plain, print_result
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from thinwire.engine.privacy.accounting import BottomModel


def privacy(
    job: Path | None = None,
    *,
    settings: list[str] = [],
    code: list[str] = [],
    width: int | None = None,
    parties: int | None = None,
    epochs: int | None = None,
    trials: int | None = None,
    beta: float | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    frozen: bool = False,
    noise_multiplier: float | None = None,
    label_holds_features: bool = False,
    observer: str = "label_party",
    as_json: bool = False,
) -> None:
    """Compute the epsilon that a job or given pbm parameters will spend, or the noise for a given epsilon.

    Without a frozen or privately trained bottom model there is no guarantee for the run as a whole, and its
    epsilon is infinite.
    """
    figures = {"--width": width, "--parties": parties, "--epochs": epochs, "--trials": trials, "--beta": beta}
    more = {"--epsilon": epsilon, "--noise-multiplier": noise_multiplier, "--frozen": frozen or None}
    if job is not None:
        _require_absent({**figures, **more, "--label-holds-features": label_holds_features or None})
        _forecast(job, settings, code, delta, as_json)
        return
    if width is None or parties is None or epochs is None:
        raise BadInput("give a job file, or --width, --parties and --epochs")
    from thinwire.engine.privacy import accounting
    from thinwire.engine.privacy.accounting.figures import cost_report, plan_report

    bottom = _build_bottom(frozen, noise_multiplier)
    among = accounting.Parties(parties, label_holds_features)
    if trials is not None and beta is not None and epsilon is None:
        release = accounting.PoissonBinomialRelease(trials, beta, width)
        facts, show = cost_report(accounting.Exposure(release, among, bottom), epochs, delta), _print_costs
    elif epsilon is not None and trials is None and beta is None:
        budget = accounting.Budget(epsilon, delta, accounting.Observer.parse(observer))
        # Planned as if the bottom model gave nothing away; the report says so where it does.
        planned = accounting.Frozen() if isinstance(bottom, accounting.TrainedOnRawRows) else bottom
        facts, show = (
            plan_report(accounting.PrivacyTarget(budget, width, among, epochs, planned), bottom),
            _print_plans,
        )
    else:
        raise BadInput("give --trials and --beta to compute their epsilon, or --epsilon alone to find them")
    print_result(facts, as_json, lambda: show(facts))


def _require_absent(figures: Mapping[str, object]) -> None:
    given = [flag for flag, value in figures.items() if value is not None]
    if given:
        raise BadInput(
            f"{', '.join(given)}: the job file already sets this; change it with --set, or leave out the file"
        )


def _forecast(job: Path, settings: list[str], code: list[str], delta: float, as_json: bool) -> None:
    from thinwire.job.job_loader import load_job
    from thinwire.job.own_code import CodeSources

    with ProgressLine("reading the tables", 0) as progress:
        loaded = load_job(job, settings, CodeSources.parse(code), progress.follower)
    facts = loaded.forecast_privacy(delta)
    print_result(facts, as_json, lambda: _print_forecast(facts))


def _print_forecast(facts: dict[str, Any]) -> None:
    """At the end of the run; where nothing is proven, why."""
    if all(row["releases_epsilon"] == "infinity" for row in facts["observers"]):
        typer.echo(f"{facts['method']}: no guarantee; epsilon is infinite for every observer")
        _print_words(facts)
        return
    _print_costs(facts)
    budget = facts["budget"]
    if budget is not None:
        allowed = f"{facts['rounds']} of {facts['planned_rounds']} rounds"
        against = _format_observer(budget["observer"])
        typer.echo(f"\nThe budget of epsilon {budget['epsilon']:g} against {against} allows {allowed}.")


def _build_bottom(frozen: bool, noise_multiplier: float | None) -> BottomModel:
    from thinwire.engine.privacy.accounting import Frozen, PrivatelyTrained, TrainedOnRawRows

    if frozen and noise_multiplier is not None:
        raise BadInput(
            "--frozen assumes a bottom model that is not trained and --noise-multiplier one that is; use only "
            "one of them"
        )
    if noise_multiplier is not None:
        return PrivatelyTrained(noise_multiplier)
    return Frozen() if frozen else TrainedOnRawRows()


def _print_costs(facts: dict[str, Any]) -> None:
    title = f"epsilon after {_format_epochs(facts)}, delta {facts['delta']:g}"
    table = build_table(title, ["hidden from"], ("unknown\nnoise of", "releases", "end to end"))
    for row in facts["observers"]:
        epsilons = (format_epsilon(row[f"{part}_epsilon"]) for part in ("releases", "end_to_end"))
        unknown = "1 party" if row["unknown_parties"] == 1 else f"{row['unknown_parties']} parties"
        table.add_row(_format_observer(row["observer"]), unknown, *epsilons)
    print_plain(table)
    _print_words(facts)


def _print_plans(facts: dict[str, Any]) -> None:
    against = _format_observer(facts["observer"])
    title = f"epsilon {facts['epsilon']:g} against {against}, delta {facts['delta']:g}, {_format_epochs(facts)}"
    unproven = facts["least_noise"]["observers"][0]["end_to_end_epsilon"] == "infinity"
    headings = ("trials", "beta", "bits a\nvalue", "noise\n(std)", "epsilon: label party\n/ feature party / all")
    table = build_table(title, [""], headings)
    for name in ("least_noise", "fewest_bits"):
        plan = facts[name]
        part = "releases_epsilon" if unproven else "end_to_end_epsilon"
        epsilons = " / ".join(format_epsilon(row[part]) for row in plan["observers"])
        numbers = (f"{plan['trials']}", f"{plan['beta']:g}", f"{plan['bits_per_value']}", f"{plan['noise_std']:.3g}")
        table.add_row(name.replace("_", " "), *numbers, epsilons)
    print_plain(table)
    if unproven:
        typer.echo(
            "This epsilon covers the releases only; without --frozen or --noise-multiplier, epsilon end to "
            "end is infinite."
        )
    typer.echo(facts["usefulness"]["says"])
    for line in facts["usefulness"]["helps"]:
        typer.echo(f"  {line}")
    _print_words(facts)


def _print_words(facts: dict[str, Any]) -> None:
    for heading, name in (("Not protected:", "not_protected"), ("This holds only if:", "holds_only_if")):
        if facts[name]:
            typer.echo(f"\n{heading}")
        for line in facts[name]:
            typer.echo(f"  - {line}")


def _format_epochs(facts: dict[str, Any]) -> str:
    return f"{facts['epochs']:g} epoch{'s' * (facts['epochs'] != 1)}"


def _format_observer(name: str) -> str:
    from thinwire.engine.privacy.accounting import Observer

    return Observer(name).display_name
