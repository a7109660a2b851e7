"""scikit-learn's own checks of an estimator; the few that cannot hold are named with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from thinwire import VerticalClassifier, VerticalRegressor

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "copies of a row stand in batches of their own and count when columns are scaled; a weight does neither"
    )
}


TREES: dict[str, Any] = {"model": "boosted_trees", "epochs": 15}
NETWORKS = (VerticalClassifier(epochs=10), VerticalRegressor(epochs=10))
BOOSTED = (VerticalClassifier(**TREES), VerticalRegressor(**TREES))
REGRESSIONS = (VerticalClassifier(model="linear"), VerticalRegressor(model="linear"))


def list_checks(*estimators: Any) -> list[Any]:
    """All but those of other array libraries, which an estimator without them passes over."""
    found: list[Any] = []
    for estimator in estimators:
        checks = estimator_checks_generator(estimator, expected_failed_checks=EXPECTED_FAILURES, mark="xfail")
        found += [check for check in checks if "check_array_api" not in str(check)]
    return [pytest.param(*one, marks=pytest.mark.long) if _is_slow(one) else one for one in found]


def _is_slow(one: Any) -> bool:
    """Of a regressor: it differs from the classifier in its loss alone."""
    estimator = one[0]
    return isinstance(estimator, VerticalRegressor) and len(one) == 2


def name_part(part: Any) -> str:
    return part.func.__name__ if hasattr(part, "func") else type(part).__name__


@pytest.mark.parametrize(("estimator", "check"), list_checks(*NETWORKS, *BOOSTED), ids=name_part)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scikit_learns_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.long
@pytest.mark.parametrize(("estimator", "check"), list_checks(*REGRESSIONS), ids=name_part)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scikit_learns_checks_of_regressions(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
