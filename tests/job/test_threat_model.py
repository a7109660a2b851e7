"""The threat model page says of every recipe what the code says.

Run as a program, this file writes the page's list anew: python tests/job/test_threat_model.py
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from thinwire.engine.compress import RandomizedResponse, TopK, Uniform
from thinwire.engine.methods import METHODS, boosting, celu, cvfl, efvfl, fedbcd, once, pbm, svfl, thin
from thinwire.engine.privacy import DPBottom, Frozen, SecureSum, TrainedOnRawRows
from thinwire.engine.privacy.accounting import Budget
from thinwire.engine.privacy.defences import LabelDP
from thinwire.engine.privacy.dp_bottom import Training
from thinwire.engine.recipe import Recipe
from thinwire.job.disclosure import Participants, describe_budget, describe_training

PAGE = Path(__file__).resolve().parents[2] / "docs" / "threat_model.md"
MARKS = re.compile("(<!-- recipes: begin -->\n).*(<!-- recipes: end -->)", re.DOTALL)
ROSTER = Participants("shop", ("bank", "post", "mill"), has_test_rows=True)

RESPONSE = RandomizedResponse(22, 4)
RECIPES: list[tuple[str, Recipe, Training, Budget | None]] = [
    ("svfl()", svfl(), TrainedOnRawRows(), None),
    ("fedbcd(5)", fedbcd(5), TrainedOnRawRows(), None),
    ("celu(5, 5)", celu(5, 5), TrainedOnRawRows(), None),
    ("cvfl(TopK(0.01))", cvfl(TopK(0.01)), TrainedOnRawRows(), None),
    ("efvfl(TopK(0.01))", efvfl(TopK(0.01)), TrainedOnRawRows(), None),
    ("efvfl(TopK(0.01), private)", efvfl(TopK(0.01), labels="private"), TrainedOnRawRows(), None),
    ("thin()", thin(), TrainedOnRawRows(), None),
    ("boosting()", boosting(), TrainedOnRawRows(), None),
    ("once()", once(), TrainedOnRawRows(), None),
    ("once(noise=RandomizedResponse(22, 4)), bins", once(noise=RESPONSE), TrainedOnRawRows(), None),
    (
        "once(noise=RandomizedResponse(22, 4)), bins with public edges, budget 44",
        once(noise=RESPONSE),
        Frozen(),
        Budget(44),
    ),
    (
        "cvfl(Uniform(4, bounds=(-1, 1))), secure sum",
        replace(cvfl(Uniform(4, bounds=(-1, 1))), aggregation=SecureSum()),
        TrainedOnRawRows(),
        None,
    ),
    ("pbm(16, 0.15)", pbm(16, 0.15), TrainedOnRawRows(), None),
    ("pbm(16, 0.15), frozen bottom models, budget 8", pbm(16, 0.15), Frozen(), Budget(8)),
    ("pbm(16, 0.15), DPBottom(1, 4)", pbm(16, 0.15), DPBottom(1.0, 4.0), None),
    ("svfl(), LabelDP(1)", replace(svfl(), defence=LabelDP(1.0)), TrainedOnRawRows(), None),
]


def made() -> str:
    lines = []
    for name, recipe, training, limit in RECIPES:
        lines.append(f"**{name}**\n")
        seen = describe_training(recipe, ROSTER)
        lines += [f"- {who} sees {'; '.join(seen[party])}" for who, party in _observers()]
        lines.append(f"- {describe_budget(recipe, training, limit)}\n")
    lines.append("**svfl(), column_importance = true**, beside what svfl() shows\n")
    measured = describe_training(svfl(), replace(ROSTER, measures_columns=True))
    lines += [f"- {who} sees {measured[party][-1]}" for who, party in _observers()]
    return "\n".join(lines) + "\n\n"


def _observers() -> tuple[tuple[str, str], ...]:
    return (("the label party", "shop"), ("every feature party", "bank"))


def test_the_page_says_what_the_code_says() -> None:
    assert MARKS.sub(lambda found: found[1] + made() + found[2], PAGE.read_text()) == PAGE.read_text()


def test_every_method_is_there() -> None:
    assert {recipe.name for _, recipe, _, _ in RECIPES} == set(METHODS)


if __name__ == "__main__":
    PAGE.write_text(MARKS.sub(lambda found: found[1] + made() + found[2], PAGE.read_text()))
