"""Alone against together: a model beside its baselines, and what each party and column is worth to it."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.base.format import format_score, format_seconds, name_score
from thinwire.report.figures import Figure
from thinwire.report.record import ALL_PARTIES, BaselineScore, Importance, RunRecord
from thinwire.report.svg.bar_chart import Bar, Bars

_WORDS = {
    "boosted_trees": "boosted trees",
    "logistic_regression": "logistic regression",
    "ridge_regression": "ridge regression",
    "class_prior": "the class prior",
    "mean_label": "the mean label",
}
_TOGETHER, _MODEL, _BASELINE = "together, federated", "this model", "baseline"
_WIDTH, _NAMES, _COLUMN_NAMES = 500, 215, 190  # pixels
_MOST_BARS, _MOST_ROWS = 12, 100
_FIRST_COLUMNS = 5  # in a sentence


def baseline_figure(run: RunRecord) -> Figure | None:
    """The label party alone, together, and the joined table where it was simulated."""
    together = find_test_score(run)
    if not run.baselines or together is None:
        return None
    metric, sign = run.baselines[0].metric, _sign(run)
    alone = find_best_alone(run.baselines, sign)
    bars = [] if alone is None or alone.value is None else [(f"{alone.columns} alone", alone.value)]
    bars.append((_TOGETHER, together))
    joined = _on_joined_table(run.baselines)
    bars += [(f"{_name(one)}, joined table", one.value) for one in joined if one.value is not None]
    drawn = _draw_scores(metric, bars, sign)
    rows = [(_TOGETHER, format_score(together), "", "")]
    rows += [(f"{_name(one)}, {one.columns}", *_describe_row(one)) for one in run.baselines]
    return Figure(
        "alone-against-together", drawn.title, drawn.svg(), ("", name_score(metric), "time", ""), tuple(rows)
    )


def _draw_scores(metric: str, scores: Sequence[tuple[str, float]], sign: int) -> Bars:
    bars = [Bar(name, {_MODEL if name == _TOGETHER else _BASELINE: value}) for name, value in scores]
    # Half is what chance reaches: bars from 0 would all look alike.
    low = 0.5 if metric == "auc" and min(value for _, value in scores) >= 0.5 else 0.0
    title = f"{name_score(metric)} on the test rows"
    axis = f"{name_score(metric)}, {'higher' if sign > 0 else 'lower'} is better"
    return Bars(title, axis, bars, format_score, quiet=(_BASELINE,), width=_WIDTH, left=_NAMES, low=low)


def _describe_row(one: BaselineScore) -> tuple[str, str, str]:
    return "-" if one.value is None else format_score(one.value), format_seconds(one.seconds), one.note


def describe_baselines(baselines: Sequence[BaselineScore], together: float | None, sign: int) -> list[str]:
    """In sentences: what the partners add, and whether a plain model on the joined table is better.

    `sign` is 1 where a higher score is better, -1 where a lower one is.
    """
    if not baselines or together is None:
        return []
    metric = name_score(baselines[0].metric)
    said = []
    alone = find_best_alone(baselines, sign)
    if alone is not None and alone.value is not None:
        said.append(_describe_alone(metric, together, alone, alone.value, sign))
    return [*said, *_describe_joined(together, baselines, sign), _describe_cost(baselines)]


def _describe_alone(metric: str, together: float, alone: BaselineScore, value: float, sign: int) -> str:
    change = _compare(together, value, sign)
    reached = f"what {alone.columns} reaches alone ({format_score(value)}, {_name(alone)})"
    worse = "" if sign * (together - value) > 0 else ": the partners' columns do not improve the model"
    return f"Together: {metric} {format_score(together)}, {change} {reached}{worse}."


def _describe_joined(together: float, baselines: Sequence[BaselineScore], sign: int) -> list[str]:
    joined = _on_joined_table(baselines)
    names = " and ".join(f"{_name(one)} ({format_score(one.value)})" for one in joined if one.value is not None)
    none_better = [f"No baseline on the joined table is better: {names}."] if names else []
    return describe_better_baselines(joined, together, sign) or none_better


def describe_better_baselines(baselines: Sequence[BaselineScore], together: float | None, sign: int) -> list[str]:
    """A sentence for each that beats the model."""
    if together is None:
        return []
    return [
        f"{_name(one).capitalize()} on {_name_columns(one)} {_reach(one)} {name_score(one.metric)} "
        f"{format_score(one.value)}: the federated model is {_compare(together, one.value, sign)} it."
        for one in baselines
        if one.value is not None and sign * (one.value - together) > 0 and _differs(one.value, together)
    ]


def _reach(one: BaselineScore) -> str:
    return "reach" if _name(one).endswith("trees") else "reaches"


def _differs(one: float, other: float) -> bool:
    """In the digits that are shown."""
    return format_score(one) != format_score(other)


def _name_columns(one: BaselineScore) -> str:
    return f"the columns of {one.columns} alone" if _is_own(one) else "the joined table"


def _describe_cost(baselines: Sequence[BaselineScore]) -> str:
    seconds = format_seconds(sum(one.seconds for one in baselines))
    notes = "; ".join(dict.fromkeys(f"{one.note}" for one in baselines if one.note))
    return f"The baselines took {seconds}{f' ({notes})' if notes else ''}."


def _compare(ours: float, theirs: float, sign: int) -> str:
    size = format_score(abs(ours - theirs))
    if not _differs(ours, theirs):
        return "the same as"
    if sign > 0:
        return f"{size} {'above' if ours > theirs else 'below'}"
    return f"{size} {'lower (better) than' if ours < theirs else 'higher (worse) than'}"


def find_best_alone(baselines: Sequence[BaselineScore], sign: int) -> BaselineScore | None:
    """The better of the label party's own."""
    own = [(sign * one.value, one) for one in baselines if _is_own(one) and one.value is not None]
    return max(own, key=lambda pair: pair[0])[1] if own else None


def _is_own(one: BaselineScore) -> bool:
    return one.columns != ALL_PARTIES


def _on_joined_table(baselines: Sequence[BaselineScore]) -> list[BaselineScore]:
    return [one for one in baselines if not _is_own(one)]


def _name(one: BaselineScore) -> str:
    return _WORDS.get(one.name, one.name.replace("_", " "))


def find_test_score(run: RunRecord) -> float | None:
    """The model's first metric on the test rows, at the last evaluation that has it."""
    values = (event.value_at(f"test.{run.about.metric}") for event in reversed(run.events))
    return next((value for value in values if value is not None), None)


def _sign(run: RunRecord) -> int:
    return run.about.better.get(run.about.metric, -1)


def describe_run_baselines(run: RunRecord) -> list[str]:
    return describe_baselines(run.baselines, find_test_score(run), _sign(run))


# Importance -------------------------------------------------------------------------------------------------------


def describe_importance(found: Importance) -> list[str]:
    """Value of each party's data, in a sentence; at a feature party, what its own columns are."""
    metric, gains = name_score(found.metric), _describe_gains(found)
    if not found.parties:
        best = ", ".join(f"{one.column} {format_score(one.lost)}" for one in found.columns[:_FIRST_COLUMNS])
        return [*([f"{metric} lost when a column is permuted: {best}."] if best else []), *gains]
    ranked = sorted(found.parties, key=lambda one: -one.worth)
    worth = ", ".join(
        f"{one.party} {format_score(one.worth)} (without it {format_score(one.without)})" for one in ranked
    )
    return [f"Value of each party's data, in {metric}: {worth}.", *gains]


def _describe_gains(found: Importance) -> list[str]:
    """Of each party with trees, the columns that its splits gained most by."""
    parties = dict.fromkeys(one.party for one in found.gains)
    return [
        f"Gain of the splits of {party}'s trees: "
        + ", ".join(
            f"{one.column} {one.share:.0%}" for one in [g for g in found.gains if g.party == party][:_FIRST_COLUMNS]
        )
        + "."
        for party in parties
    ]


def importance_figures(run: RunRecord) -> list[Figure]:
    """By party, without each party, and by column: whatever is known."""
    found = run.importance
    if found is None:
        return []
    return [*_party_figures(found), *_column_figures(found, _sign(run)), *_gain_figures(found)]


def _party_figures(found: Importance) -> list[Figure]:
    if not found.parties:
        return []
    metric = name_score(found.metric)
    ranked = sorted(found.parties, key=lambda one: -one.lost)
    worth = sorted(found.parties, key=lambda one: -one.worth)
    return [
        _draw_importance(
            "importance-by-party",
            "Permutation importance by party",
            (f"{metric} lost", f"{metric} when permuted"),
            [(one.party, "", one.lost, one.permuted) for one in ranked],
            "The rows of one party's embedding are permuted together; mean of 3 permutations.",
        ),
        _draw_importance(
            "worth-by-party",
            "Value of each party's data",
            (f"{metric} lost without it", f"{metric} without it"),
            [(one.party, "", one.worth, one.without) for one in worth],
            "One party's embedding is replaced by its mean over the test rows; the model is not retrained.",
        ),
    ]


def _column_figures(found: Importance, sign: int) -> list[Figure]:
    """Each column in the colour of its party."""
    if not found.columns:
        return []
    metric, listed = name_score(found.metric), found.columns[:_MOST_ROWS]
    more = len(listed) - _MOST_BARS
    figure = _draw_importance(
        "importance-by-column",
        "Permutation importance by column",
        (f"{metric} lost", f"{metric} when permuted"),
        [
            (one.column, one.party, one.lost, None if found.value is None else found.value - sign * one.lost)
            for one in listed
        ],
        "One column is permuted at its owner; mean of 3 permutations, only one permutation from 1,000 test rows on."
        + (f" The table has {more} more." if more > 0 else ""),
    )
    return [figure]


def _gain_figures(found: Importance) -> list[Figure]:
    """Each column in the colour of its party."""
    if not found.gains:
        return []
    title, head = "Gain of splits by column", "Share of the party's gain"
    rows = found.gains[:_MOST_ROWS]
    bars = [Bar(one.column, {one.party: one.share}) for one in rows[:_MOST_BARS]]
    cells = tuple((f"{one.column} ({one.party})", f"{one.share:.1%}") for one in rows)
    drawn = Bars(title, head, bars, "{:.0%}".format, left=_COLUMN_NAMES)
    note = "How much splits reduced the training loss; columns with many distinct values gain some of it by chance."
    return [Figure("gain-by-column", title, drawn.svg(), ("", head), cells, note)]


def _draw_importance(
    key: str, title: str, heads: tuple[str, str], rows: Sequence[tuple[str, str, float, float | None]], note: str
) -> Figure:
    """Rows of a name, a party where it is not the name, what is lost, and the score that is left if it is known."""
    bars = [Bar(name, {party or heads[0]: lost}) for name, party, lost, _ in rows[:_MOST_BARS]]
    drawn = Bars(title, heads[0], bars, format_score, left=_COLUMN_NAMES)
    cells = tuple(
        (f"{name} ({party})" if party else name, format_score(lost), "" if score is None else format_score(score))
        for name, party, lost, score in rows
    )
    return Figure(key, title, drawn.svg(), ("", *heads), cells, note)
