"""`thinwire privacy`: what a noisy secure sum protects, from whom; or the noise that a wanted epsilon needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.output import build_table, format_epsilon, print_plain, print_result

if TYPE_CHECKING:
    from thinwire.engine.privacy.accounting import BottomModel


def privacy(
    *,
    width: int,
    parties: int,
    epochs: int,
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
    """Say what pbm protects, from whom and with which epsilon; or find the noise for a wanted epsilon.

    Without --frozen or --noise-multiplier nothing is proven for a run as a whole, and that epsilon is infinite.
    """
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
        raise BadInput("give --trials and --beta to see what they protect, or --epsilon alone to have them found")
    print_result(facts, as_json, lambda: show(facts))


def _build_bottom(frozen: bool, noise_multiplier: float | None) -> BottomModel:
    from thinwire.engine.privacy.accounting import Frozen, PrivatelyTrained, TrainedOnRawRows

    if frozen and noise_multiplier is not None:
        raise BadInput("--frozen says that the bottom model does not learn, --noise-multiplier how: give one of them")
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
        typer.echo("Of the releases alone; end to end it is infinite without --frozen or --noise-multiplier.")
    typer.echo(facts["usefulness"]["says"])
    for line in facts["usefulness"]["helps"]:
        typer.echo(f"  {line}")
    _print_words(facts)


def _print_words(facts: dict[str, Any]) -> None:
    for heading, name in (("Not protected:", "not_protected"), ("This holds only if:", "holds_only_if")):
        typer.echo(f"\n{heading}")
        for line in facts[name]:
            typer.echo(f"  - {line}")


def _format_epochs(facts: dict[str, Any]) -> str:
    return f"{facts['epochs']} epoch{'s' * (facts['epochs'] != 1)}"


def _format_observer(name: str) -> str:
    from thinwire.engine.privacy.accounting import Observer

    return Observer(name).display_name
