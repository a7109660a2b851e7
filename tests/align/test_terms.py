"""min_overlap: what each party asks for, and what nobody learns where it is not met."""

from __future__ import annotations

import pytest

from align.talking import LABEL, Wire, aligned, outcomes
from thinwire.align import NoOverlap, Terms, TooLittleOverlap, intersect
from thinwire.base.errors import BadParameter, TooLarge
from thinwire.base.types import Kind


@pytest.mark.parametrize(
    ("min_overlap", "own", "needed"),
    [(1, 5, 1), (7, 5, 7), (1.0, 5, 5), (0.5, 5, 3), (0.1, 30, 3), (0.3, 10, 3), (1e-9, 5, 1), (0.07, 100, 7)],
)
def test_rows_or_a_fraction_of_ones_own(min_overlap: float, own: int, needed: int) -> None:
    assert Terms(min_overlap).minimum_rows(own) == needed


@pytest.mark.parametrize("wrong", [0, -1, 0.0, 1.5, -0.5, float("nan"), True, "3", None])
def test_other_terms_are_refused(wrong: object) -> None:
    with pytest.raises(BadParameter, match="min_overlap must be a number of rows, at least 1, or a fraction"):
        Terms(min_overlap=wrong)  # type: ignore[arg-type]
    with pytest.raises(BadParameter, match="max_peer_ids must be an integer from 1 to"):
        Terms(max_peer_ids=wrong)  # type: ignore[arg-type]


IDS = {"bank": [1, 2, 3, 4], "mill": [3, 4, 5, 6, 7, 8], LABEL: [2, 3, 4, 5, 6, 9]}  # 3 and 4 in common


@pytest.mark.parametrize("party", IDS)
@pytest.mark.parametrize("min_overlap", [3, 0.9])
def test_whoever_asks_for_more_ends_it_before_rows_are_told(party: str, min_overlap: int | float) -> None:
    wire = Wire()
    terms = Terms(min_overlap)
    if terms.minimum_rows(len(IDS[party])) > 4:
        return  # the sizes alone refuse it: the next test
    for outcome in outcomes(IDS, terms={party: terms}, wire=wire).values():
        assert isinstance(outcome, TooLittleOverlap)
        assert outcome.refusing == (party,)
        assert str(outcome).startswith(f"the parties share 2 ids, too few for '{party}'")
    assert not wire.bodies(Kind.COMMON_ROWS)


def test_all_who_refuse_are_named() -> None:
    with pytest.raises(TooLittleOverlap, match="too few for 'bank', 'shop'"):
        aligned(IDS, terms={"bank": Terms(3), LABEL: Terms(4)})
    found = aligned(IDS, terms={"bank": Terms(2), LABEL: Terms(2), "mill": Terms(0.33)})
    assert {len(alignment) for alignment in found.values()} == {2}


@pytest.mark.parametrize("party", IDS)
def test_sets_too_small_for_someone_are_refused_before_any_point(party: str) -> None:
    wire = Wire()
    least = 5 if party != "mill" else 7
    for outcome in outcomes(IDS, terms={party: Terms(least + 1)}, wire=wire).values():
        assert isinstance(outcome, TooLittleOverlap)
        assert outcome.refusing == (party,)
        assert str(outcome).startswith("the parties share at most ")
    assert {message.kind for message in wire.messages} == {Kind.ALIGNMENT}


def test_a_set_over_the_cap_is_refused_before_any_point() -> None:
    for party, other in (("mill", LABEL), (LABEL, "bank")):
        wire = Wire()
        with pytest.raises(TooLarge, match=rf"'{other}' has \d ids, more than this party's max_peer_ids of 3"):
            aligned(IDS, terms={party: Terms(max_peer_ids=3)}, wire=wire)
        assert {message.kind for message in wire.messages} == {Kind.ALIGNMENT}


def test_no_overlap_says_how_ids_are_written_here() -> None:
    with pytest.raises(NoOverlap, match=r"'007' is not '7'.*\(here, 2 of 2 begin with a zero\)"):
        intersect({LABEL: ["007", "008"], "bank": [7, 8]}, LABEL)
    with pytest.raises(NoOverlap, match=r"held by all parties \(1 with 'bank', 1 with 'mill'\)"):
        intersect({LABEL: ["a", "b"], "bank": ["a"], "mill": ["b"]}, LABEL)
    wire = Wire()
    found = outcomes({LABEL: ["a"], "bank": ["b"]}, wire=wire)
    assert all(isinstance(outcome, NoOverlap) for outcome in found.values())
    assert not wire.bodies(Kind.COMMON_ROWS)


def test_the_simulator_takes_a_minimum_too() -> None:
    with pytest.raises(TooLittleOverlap):
        intersect(IDS, LABEL, min_overlap=3)
    assert len(intersect(IDS, LABEL, min_overlap=2)["mill"]) == 2
