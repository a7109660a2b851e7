"""Which recipes are tried."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from thinwire.engine.compress import TopK
from thinwire.engine.methods import METHODS, celu, efvfl
from thinwire.engine.privacy import Labels
from thinwire.engine.recipe import Recipe
from thinwire.job.registry import build_recipe
from thinwire.lab.tune import search


def study() -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))


def test_every_suggestion_is_a_recipe_with_private_labels() -> None:
    asked = study()
    tables = [search.suggest_recipe(asked.ask()) for _ in range(60)]
    assert {table["method"] for table in tables} == set(search.METHODS_TRIED)
    for table in tables:
        recipe = build_recipe("recipe", table)
        recipe.check(2, "sum")
        assert recipe.labels is Labels.PRIVATE
        assert recipe.repeatable


def test_the_first_ones_are_the_methods_as_they_come() -> None:
    asked = study()
    for start in search.list_starts():
        asked.enqueue_trial(start)
    first = [search.suggest_recipe(asked.ask()) for _ in search.METHODS_TRIED]
    assert [table["method"] for table in first] == list(search.METHODS_TRIED)
    assert first[0] == next(one for one in search.list_starts() if one["method"] == "thin")
    assert build_recipe("recipe", first[1]) == celu(capacity=5, reuse=5)
    assert build_recipe("recipe", first[2]) == efvfl(TopK(0.1), labels="private")


def test_parameters_come_from_the_methods_own_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that is new keeps its default, one that is gone is not given, a clever default is left alone."""

    def other(up_step: float | str = "adaptive", down_step: float = 30.0, reuse: int = 4, new: int = 7) -> Recipe:
        raise AssertionError

    monkeypatch.setitem(METHODS, "thin", other)
    (start,) = [one for one in search.list_starts() if one["method"] == "thin"]
    assert start == {"method": "thin", "down_step": 10.0, "reuse": 4}
    assert search.one_step("thin") == {"method": "thin", "reuse": 1}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"method": "svfl"}, "svfl"),
        ({"method": "celu", "capacity": 5, "overlap": True}, "celu (capacity 5, overlap on)"),
        ({"method": "thin", "reuse": 1, "overlap": "ahead"}, "thin (reuse 1, overlap ahead)"),
        (
            {"method": "efvfl", "compressor": {"name": "TopK", "fraction": 0.1}, "labels": "private"},
            "efvfl (TopK 0.1)",
        ),
    ],
)
def test_recipes_in_words(table: dict[str, Any], said: str) -> None:
    assert search.format_recipe(table) == said
