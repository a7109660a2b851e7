"""The ledger: every use of every row, the worst-off row's epsilon, and a budget that is never exceeded."""

from __future__ import annotations

import json
from functools import partial
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.base.errors import BadInput, BadParameter, BadState, IncompatibleRecipe, ThinwireError
from thinwire.engine.privacy.accounting import (
    BottomModel,
    Budget,
    BudgetExceeded,
    Exact,
    Exposure,
    Frozen,
    Mechanism,
    Observer,
    Parties,
    PoissonBinomialRelease,
    PrivacyLedger,
    PrivatelyTrained,
    TrainedOnRawRows,
    Uses,
    convert_to_epsilon,
    poisson_binomial_epsilon,
)
from thinwire.engine.privacy.accounting.ledger import end_to_end_epsilon
from thinwire.engine.privacy.accounting.renyi import compose, coordinate, gaussian_rdp

PBM = PoissonBinomialRelease(trials=4, beta=0.05, width=16)
FOUR = Parties(4)
FROZEN = Frozen()
NOBODY: Any = "nobody"
ROWS = 10


def ledger(
    bottom: BottomModel = FROZEN, budget: Budget | None = None, mechanism: Mechanism = PBM, parties: Parties = FOUR
) -> PrivacyLedger:
    return PrivacyLedger("bank", Exposure(mechanism, parties, bottom), ROWS, budget)


def rows(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, np.int64)


EVERY_ROW = np.arange(ROWS)


def epsilons(one: PrivacyLedger) -> list[float]:
    return [figure.end_to_end for figure in one.privacy_losses()]


def release_epsilon(unknown: int, releases: int) -> float:
    return poisson_binomial_epsilon(4, 0.05, 16, unknown, releases, 1e-5)


# What is spent ----------------------------------------------------------------------------------------


def test_nothing_used_is_nothing_spent() -> None:
    for bottom in (Frozen(), PrivatelyTrained(1.0), TrainedOnRawRows()):
        assert epsilons(ledger(bottom)) == [0.0, 0.0, 0.0]


def test_the_worst_off_row_counts_for_every_observer() -> None:
    one = ledger()
    for batch in ([0, 1, 2], [3, 4, 5], [2, 6]):
        one.charge_release(rows(*batch))
    assert epsilons(one) == [release_epsilon(unknown, 2) for unknown in (4, 3, 1)]
    assert [figure.unknown_parties for figure in one.privacy_losses()] == [4, 3, 1]
    assert one.state()["releases"].tolist() == [1, 1, 2, 1, 1, 1, 1, 0, 0, 0]


def test_a_bottom_model_that_learns_from_raw_rows_has_no_bound() -> None:
    one = ledger(TrainedOnRawRows())
    one.charge_release(rows(3))
    assert epsilons(one) == [inf, inf, inf]
    assert [figure.releases for figure in one.privacy_losses()] == [
        release_epsilon(unknown, 1) for unknown in (4, 3, 1)
    ]


def test_exact_embeddings_have_no_bound_at_all() -> None:
    one = ledger(mechanism=Exact())
    one.charge_release(rows(3))
    assert {figure.releases for figure in one.privacy_losses()} == {inf} == set(epsilons(one))
    assert "without noise" in one.summary()["not_protected"][0]


def test_releases_and_noisy_steps_add_up() -> None:
    one = ledger(PrivatelyTrained(3.0))
    for _ in range(5):
        one.charge_release(EVERY_ROW)
        one.charge_step(EVERY_ROW)
    for figure in one.privacy_losses():
        release = coordinate(4, 0.05, figure.unknown_parties).rdp
        assert figure.end_to_end == convert_to_epsilon(compose((5 * 16, release), (5, gaussian_rdp(3.0))), 1e-5)
        assert figure.releases == release_epsilon(figure.unknown_parties, 5)
        assert figure.end_to_end > figure.releases


@pytest.mark.parametrize("noise_multiplier", [5.0, 2.5, 0.5])  # a release costs more than a step, the same, less
@pytest.mark.parametrize("counts", [[(30, 0), (0, 30), (1, 1)], [(2, 0), (1, 3)], [(3, 1), (2, 2), (1, 3)]])
def test_the_worst_of_rows_that_were_used_differently(counts: list[tuple[int, int]], noise_multiplier: float) -> None:
    one = ledger(PrivatelyTrained(noise_multiplier))
    for row, (releases, steps) in enumerate(counts):
        for _ in range(releases):
            one.charge_release(rows(row))
        for _ in range(steps):
            one.charge_step(rows(row))
    exposure = Exposure(PBM, FOUR, PrivatelyTrained(noise_multiplier))
    most = Uses(*map(max, zip(*counts, strict=True)))
    for figure in one.privacy_losses():
        each = [end_to_end_epsilon(exposure, figure.observer, Uses(*pair), 1e-5) for pair in counts]
        assert figure.end_to_end == max(each)
        # Not of a row that never was, with the most of both.
        assert figure.end_to_end < end_to_end_epsilon(exposure, figure.observer, most, 1e-5)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, ROWS - 1), max_size=12)), max_size=12))
def test_any_charges_are_what_counting_by_hand_gives(charges: list[tuple[bool, list[int]]]) -> None:
    one = ledger(PrivatelyTrained(2.5))
    releases, steps = [0] * ROWS, [0] * ROWS
    for release, batch in charges:
        (one.charge_release if release else one.charge_step)(rows(*batch))
        for row in batch:  # a row that stands there twice is used twice
            (releases if release else steps)[row] += 1
    assert {name: counts.tolist() for name, counts in one.state().items()} == {"releases": releases, "steps": steps}
    exposure = Exposure(PBM, FOUR, PrivatelyTrained(2.5))
    for figure in one.privacy_losses():
        assert figure.end_to_end == max(
            end_to_end_epsilon(exposure, figure.observer, Uses(*pair), 1e-5)
            for pair in zip(releases, steps, strict=True)
        )


def test_less_than_three_parties_hide_nobody() -> None:
    for noisy in (1, 2):
        one = ledger(parties=Parties(noisy))
        one.charge_release(EVERY_ROW)
        assert epsilons(one) == [release_epsilon(1, 1)] * 3


def test_a_label_party_with_features_counts_as_one_that_knows_some_noise() -> None:
    assert [observer.count_noise_parties(Parties(4)) for observer in Observer] == [4, 3, 1]
    assert [observer.count_noise_parties(Parties(4, label_holds_features=True)) for observer in Observer] == [3, 3, 1]


def test_an_epsilon_is_computed_once_for_rows_of_the_same_counts() -> None:
    one = PrivacyLedger("bank", Exposure(PoissonBinomialRelease(3, 0.07, 9), FOUR, Frozen()), 4096, Budget(50))
    before = end_to_end_epsilon.cache_info().misses
    for _ in range(5):
        for batch in np.arange(4096).reshape(64, 64):
            one.charge_release(batch)
    assert end_to_end_epsilon.cache_info().misses - before <= 6


# The budget -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bottom", [Frozen(), PrivatelyTrained(10.0)])
@pytest.mark.parametrize("observer", list(Observer))
def test_so_many_epochs_fit_and_not_one_more(bottom: BottomModel, observer: Observer) -> None:
    budget = Budget(12.0, observer=observer)
    one = ledger(bottom, budget)
    charge = partial(one._charge, added=Uses(1, 0 if isinstance(bottom, Frozen) else 1))
    allowed = one.max_epochs(budget)
    assert allowed >= 1
    for _ in range(allowed):
        charge(rows(*range(5)))
        charge(rows(*range(5, ROWS)))
    before, spent = one.state(), one.summary()
    with pytest.raises(BudgetExceeded) as refused:
        charge(rows(4))
    for name, counts in one.state().items():
        assert counts.tolist() == before[name].tolist()
    assert one.summary() == spent
    assert spent["budget"]["spent"] <= 12 < refused.value.next_epsilon
    assert refused.value.spent == spent["budget"]["spent"]


def test_the_refusal_says_whose_what_and_the_way_out() -> None:
    one = ledger(budget=Budget(4.0, delta=1e-6, observer=Observer.FEATURE_PARTY))
    with pytest.raises(BudgetExceeded) as refused:
        one.charge_release(rows(0))
    said = str(refused.value)
    after = poisson_binomial_epsilon(4, 0.05, 16, 3, 1, 1e-6)
    numbers = ("has spent epsilon 0,", f"raise it to {after:.4g}", "budget is 4 (delta 1e-06")
    for words in ("'bank'", *numbers, "a curious feature party"):
        assert words in said
    assert "fewer epochs" in said
    assert issubclass(BudgetExceeded, ThinwireError)
    assert not issubclass(BudgetExceeded, BadInput)


def test_other_rows_do_not_help_once_one_is_over() -> None:
    spent = ledger()
    for _ in range(100):
        spent.charge_release(rows(7))
    one = ledger(budget=Budget(8.0))
    one.load(spent.state())
    with pytest.raises(BudgetExceeded, match="has spent epsilon 69"):
        one.charge_release(rows(0))


@pytest.mark.parametrize(("mechanism", "bottom"), [(PBM, TrainedOnRawRows()), (Exact(), Frozen()), (Exact(), None)])
def test_a_budget_that_nothing_keeps_is_refused_at_once(mechanism: Mechanism, bottom: BottomModel | None) -> None:
    with pytest.raises(IncompatibleRecipe, match=r"'bank': .* cannot be met.* frozen or privately trained"):
        ledger(bottom or PrivatelyTrained(1.0), Budget(1e6), mechanism)


def test_how_many_uses_are_allowed() -> None:
    assert ledger().max_epochs(Budget(0.5)) == 0
    assert ledger(TrainedOnRawRows()).max_epochs(Budget(1e9)) == 0
    for epsilon in (4.0, 15.0, 70.0):
        allowed = ledger().max_epochs(Budget(epsilon))
        assert release_epsilon(4, allowed) <= epsilon < release_epsilon(4, allowed + 1)


# Records ----------------------------------------------------------------------------------------------


def test_what_was_spent_outlives_the_process_and_never_goes_back() -> None:
    one = ledger(PrivatelyTrained(5.0))
    early = one.state()
    one.charge_release(rows(0, 1, 2))
    one.charge_step(rows(2, 3))
    late = one.state()
    one.load(early)
    assert one.state()["releases"].tolist() == late["releases"].tolist()
    other = ledger(PrivatelyTrained(5.0))
    other.charge_release(rows(9))
    other.load(late)
    assert other.state()["releases"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    assert other.state()["steps"].tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert epsilons(other) == epsilons(one)
    late["releases"][:] = 99  # a copy, not the ledger's own
    assert int(one.state()["releases"].max()) == 1


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "holds \\[\\]"),
        ({"releases": np.zeros(ROWS, np.int32)}, "holds \\['releases'\\]"),
        ({name: np.zeros(ROWS, np.int64) for name in ("releases", "steps")}, "int64"),
        ({name: np.zeros(ROWS - 1, np.int32) for name in ("releases", "steps")}, "\\(9,\\)"),
        ({name: np.full(ROWS, -1, np.int32) for name in ("releases", "steps")}, "none below 0"),
    ],
)
def test_records_that_cannot_be_are_refused(state: dict[str, npt.NDArray[np.int32]], says: str) -> None:
    one = ledger()
    one.charge_release(rows(0))
    with pytest.raises(BadState, match=says):
        one.load(state)
    assert int(one.state()["releases"].sum()) == 1


def test_a_full_count_does_not_start_again() -> None:
    one = ledger()
    full = np.zeros(ROWS, np.int32)
    full[3] = 2**31 - 1
    one.load({"releases": full, "steps": np.zeros(ROWS, np.int32)})
    with pytest.raises(BadState, match="more than 2147483647 times"):
        one.charge_release(rows(3))


def test_the_summary_is_plain_data() -> None:
    one = ledger(TrainedOnRawRows())
    one.charge_release(rows(3))
    spent = one.summary()
    assert json.loads(json.dumps(spent, allow_nan=False)) == spent
    assert spent["party"] == "bank"
    assert spent["delta"] == 1e-5
    assert spent["most_uses_of_a_row"] == {"releases": 1, "steps": 0}
    assert spent["budget"] is None
    assert [row["observer"] for row in spent["observers"]] == ["label_party", "feature_party", "all_others"]
    assert {row["end_to_end_epsilon"] for row in spent["observers"]} == {"infinity"}
    words = " ".join(spent["not_protected"])
    for word in ("Labels", "label party sends down", "raw rows"):
        assert word in words
    assert "BatchNorm" in " ".join(spent["holds_only_if"])


# Refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bottom", [Frozen(), TrainedOnRawRows()])
def test_only_a_privately_trained_bottom_model_makes_noisy_steps(bottom: BottomModel) -> None:
    with pytest.raises(IncompatibleRecipe, match=type(bottom).__name__):
        ledger(bottom).charge_step(rows(0))


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (rows(-1), "from 0 to 9, got -1 to -1"),
        (rows(0, 10), "from 0 to 9, got 0 to 10"),
        (np.array([0.5]), "integers in a line, got float64"),
        (np.array([True]), "integers in a line, got bool"),
        (np.zeros((2, 2), np.int64), "in a line"),
    ],
)
def test_rows_that_are_none_are_refused(batch: npt.NDArray[np.int64], says: str) -> None:
    one = ledger()
    with pytest.raises(BadParameter, match=says):
        one.charge_release(batch)
    one.charge_release(rows())
    assert int(one.state()["releases"].sum()) == 0


def test_parameters_that_cannot_be_are_refused() -> None:
    for make, says in (
        (lambda: Budget(0.0), "budget: epsilon must be above 0"),
        (lambda: Budget(inf), "budget: epsilon must be a finite number"),
        (lambda: Budget(8.0, delta=1.0), "budget: delta"),
        (lambda: Budget(8.0, observer=NOBODY), "observer must be one of label_party, feature_party, all_others"),
        (lambda: PrivatelyTrained(0.0), "noise_multiplier"),
        (lambda: Parties(0), "parties must be from 1"),
        (lambda: PoissonBinomialRelease(0, 0.1, 4), "trials"),
        (lambda: PoissonBinomialRelease(4, 0.3, 4), "beta"),
        (lambda: PoissonBinomialRelease(4, 0.1, 0), "width"),
        (lambda: PrivacyLedger("bank", Exposure(PBM, FOUR), 0), "rows must be from 1"),
    ):
        with pytest.raises(BadParameter, match=says):
            make()
    assert Budget(8.0, observer="all_others").observer is Observer.ALL_OTHERS  # type: ignore[arg-type]
