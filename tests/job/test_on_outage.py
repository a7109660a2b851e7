"""What a recipe does while a party is away."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from job.small import write_job
from thinwire.base.errors import BadInput, BadParameter, IncompatibleRecipe
from thinwire.engine.compress import TopK
from thinwire.engine.methods import celu, cvfl, fedbcd, pbm, svfl, thin
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import CachedSteps
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.registry import build_recipe


@pytest.mark.parametrize("recipe", [celu(3, 2), thin(reuse=8), fedbcd(2)], ids=lambda recipe: recipe.name)
def test_cached_recipes_may_go_on(recipe: Recipe) -> None:
    going_on = replace(recipe, on_outage="continue")
    going_on.check(2, "sum")
    assert recipe.repeatable
    assert not going_on.repeatable
    assert going_on.digest() != recipe.digest()
    assert (recipe.describe()["on_outage"], going_on.describe()["on_outage"]) == ("wait", "continue")


@pytest.mark.parametrize("recipe", [svfl(), cvfl(TopK(0.1)), celu(3, 1), fedbcd(1)], ids=lambda recipe: recipe.name)
def test_others_have_nothing_to_learn_from_meanwhile(recipe: Recipe) -> None:
    message = "while a party is disconnected; use celu, or thin with a higher reuse, or on_outage='wait'"
    with pytest.raises(IncompatibleRecipe, match=re.escape(message)):
        replace(recipe, on_outage="continue").check(2, "sum")


def test_a_secure_sum_needs_everyone() -> None:
    recipe = replace(pbm(4, 0.1), schedule=CachedSteps(3, 2), on_outage="continue")
    with pytest.raises(IncompatibleRecipe, match=r"a secure sum needs all of them; use on_outage='wait'"):
        recipe.check(3, "sum")


def test_unknown_words() -> None:
    with pytest.raises(BadParameter, match="on_outage must be 'wait' or 'continue', got 'pause'"):
        replace(celu(3, 2), on_outage="pause").check(2, "sum")
    with pytest.raises(
        BadInput, match=r"^recipe.on_outage must be 'wait' or 'continue', got 'wiat'; did you mean 'wait'"
    ):
        build_recipe("recipe", {"method": "svfl", "on_outage": "wiat"})


def test_it_stands_beside_any_methods_arguments(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    settings = ["recipe={method='celu',capacity=3,reuse=2,on_outage='continue'}"]
    assert load_job(path, settings).recipe == replace(celu(3, 2), on_outage="continue")
    assert 'on_outage = "continue"' in resolve_job(path, settings)
    assert 'on_outage = "wait"' in resolve_job(path)
    with pytest.raises(BadInput, match=r"recipe: on_outage='continue' trains on cached exchanges"):
        load_job(path, ["recipe.on_outage='continue'"])


def test_whole_numbers_and_floats_are_one_recipe() -> None:
    one = build_recipe("recipe", {"method": "thin", "up_step": 2, "xi_degrees": 60})
    two = build_recipe("recipe", {"method": "thin", "up_step": 2.0})
    assert one.digest() == two.digest() == thin(up_step=2.0).digest()
