"""A party's own part of a scorecard: its bins in its columns' words and units, with their points, as a table."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from math import inf
from typing import NamedTuple

from thinwire.engine.models.scorecard import Bin, Scorecard, ScorecardTop
from thinwire.engine.programs.parties import FeatureParty, FeaturePreparation, LabelParty

BASE = "(base)"  # points of the label party that every row begins with


class ScorecardRow(NamedTuple):
    """A bin of a column, or the base points; a row's score is the sum over all columns of all parties."""

    column: str
    bin: str
    rows: float | None = None  # by weight, where rows are weighted
    share: float | None = None
    bad_rate: float | None = None
    woe: float | None = None
    iv: float | None = None  # the bin's part
    column_iv: float | None = None
    coefficient: float | None = None
    points: float = 0.0


def list_scorecard(party: FeatureParty | LabelParty) -> tuple[ScorecardRow, ...]:
    """Empty where the party has no part in one, or nothing was fitted."""
    top, found = getattr(party, "top", None), list[ScorecardRow]()
    if isinstance(top, ScorecardTop) and top.facts.any():
        found.append(ScorecardRow(BASE, "every row", points=top.find_base_points()))
    if isinstance(party.bottom, Scorecard):
        found += _list_bins(party.bottom, party.preparation)
    return tuple(found)


def _list_bins(card: Scorecard, preparation: FeaturePreparation | None) -> Iterator[ScorecardRow]:
    names, information = _name_columns(card, preparation), card.find_information().tolist()
    bins = list(card.list_bins())
    total = sum(one.good + one.bad for one in bins if one.column == 0)
    for one in bins:
        name, rows = names[one.column], one.good + one.bad
        yield ScorecardRow(
            column=name,
            bin=_name_bin(card, name, one, preparation),
            rows=rows,
            share=rows / total,
            bad_rate=one.bad / rows,
            woe=one.woe,
            iv=one.iv,
            column_iv=information[one.column],
            coefficient=float(card.coefficients[one.column]),
            points=card.score(one.column, one.woe),
        )


def format_scorecard(rows: Sequence[ScorecardRow]) -> str:
    """As CSV; nothing stands where nothing is to be said."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(ScorecardRow._fields)
    for row in rows:
        table.writerow("" if cell is None else f"{cell:.7g}" if isinstance(cell, float) else cell for cell in row)
    return text.getvalue()


# Names --------------------------------------------------------------------------------------------------------------


def _name_columns(card: Scorecard, preparation: FeaturePreparation | None) -> list[str]:
    if preparation is None:
        return [f"column {place}" for place in range(card.in_features)]
    return [name for name, _ in preparation.slopes]


def _name_bin(card: Scorecard, name: str, one: Bin, preparation: FeaturePreparation | None) -> str:
    categories = len(card.fields_vocab)
    if one.column < categories:
        words = None if preparation is None else preparation.code_names[one.column]
        return ", ".join(f"code {slot}" if words is None else words[slot].removeprefix("= ") for slot in one.slots)
    if one.slots == (card.bins,):
        return "missing"
    edges = [-inf, *card.edges[one.column - categories].tolist(), inf]
    low, high = edges[one.slots[0]], edges[one.slots[-1] + 1]
    if low == -inf:
        return "all" if high == inf else _word(name, preparation, "false") or f"<= {high:.7g}"
    upper = "" if high == inf else f" to {high:.7g}"
    return _word(name, preparation, "true") or f"> {low:.7g}{upper}"


def _word(name: str, preparation: FeaturePreparation | None, word: str) -> str:
    """The word, where the column is one of true and false."""
    kinds = {} if preparation is None else {one["column"]: one["type"] for one in preparation.describe()}
    return word if kinds.get(name) == "boolean" else ""
