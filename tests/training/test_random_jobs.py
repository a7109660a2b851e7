"""Random whole jobs: each is refused by an error of ours, or repeats, resumes, counts and scores as it must.

The long budget is 1,000 jobs in slices, each with a seed of its own: 800 in this process, 60 as `thinwire train` that
is killed, and 140 over the network, of which 40 are killed and 40 have a party on two processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from faults.faulty import Plan
from thinwire.job.registry import build_compressor
from training.party.parties import LABEL_PARTY
from training.random_jobs import KINDS, RandomJob, Table, random_jobs, to_table, written_jobs
from training.random_models import NEEDS_ALL_ROWS
from training.random_promises import (
    check_killed,
    check_killed_parties,
    check_on_two_ranks,
    check_over_the_network,
    check_random_job,
)

AS_DRAWN = (Phase.explicit, Phase.generate)  # a failure is minimised by hand: shrinking whole runs takes minutes


def run_jobs(number: int, jobs: int, kind: str) -> None:
    """So many jobs, drawn by a seed: a slice of any budget."""
    check, strategy = PROMISES[kind]

    def keep_promises(drawn: tuple[Any, ...]) -> None:
        with TemporaryDirectory() as folder:
            check(*drawn, Path(folder))

    seed(number)(settings(max_examples=jobs, phases=AS_DRAWN)(given(strategy)(keep_promises)))()


# What is drawn beside the job -------------------------------------------------------------------------------------

interruptions = st.lists(st.integers(1, 20), min_size=1, max_size=3).map(sorted)


@st.composite
def kill_points(draw: st.DrawFn, job: RandomJob, most: int = 3) -> list[Plan]:
    """One in a round that the run comes to; others around any call that changes a file."""
    first = {"call": "round", "number": draw(st.integers(0, job.rounds - 1)), "do": "kill"}
    calls = st.fixed_dictionaries(
        {
            "call": st.sampled_from(["writev", "fsync", "rename", "replace", "mkdir", "unlink"]),
            "number": st.integers(1, 12),
            "when": st.sampled_from(["before", "after"]),
            "do": st.sampled_from(["kill", "half"]),
        }
    )
    return draw(st.permutations([[first], *([one] for one in draw(st.lists(calls, max_size=most - 1)))]))


def with_kills(jobs: st.SearchStrategy[RandomJob]) -> st.SearchStrategy[tuple[RandomJob, list[Plan]]]:
    return jobs.flatmap(lambda job: st.tuples(st.just(job), kill_points(job)))


@st.composite
def killed_parties(draw: st.DrawFn) -> tuple[RandomJob, dict[str, list[Plan]]]:
    job = draw(written_jobs())
    names = draw(st.sets(st.sampled_from(sorted({*job.names, LABEL_PARTY})), min_size=1, max_size=2))
    return job, {name: draw(kill_points(job, most=2)) for name in sorted(names)}


@st.composite
def divisible_jobs(draw: st.DrawFn) -> RandomJob:
    """What a divided batch changes by rounding alone: nothing that rounds to a grid, and no noise."""
    drawn = draw(written_jobs())
    recipe: Table = draw(
        st.sampled_from(
            [
                {"method": "svfl"},
                {"method": "fedbcd", "local_steps": 2},
                {"method": "celu", "capacity": 2, "reuse": 2, "xi_degrees": "none"},
            ]
        )
    )
    kept = {key: part for key, part in drawn.job.items() if key not in ("budget", "byte_budget", "target")}
    # A layer norm of one column has no gradient but rounding, which adam scales up.
    divided = "plain" if drawn.bottoms[0] in {*NEEDS_ALL_ROWS, "layer norm"} else drawn.bottoms[0]
    job = {**kept, "training": "raw_rows"}
    return replace(drawn, recipe=recipe, job=job, bottoms=(divided, *drawn.bottoms[1:]))


PROMISES: dict[str, tuple[Callable[..., Any], st.SearchStrategy[tuple[Any, ...]]]] = {
    "simulated": (check_random_job, st.tuples(random_jobs(), interruptions)),
    "killed": (check_killed, with_kills(written_jobs())),
    "over the network": (check_over_the_network, st.tuples(written_jobs())),
    "killed parties": (check_killed_parties, killed_parties()),
    "on two ranks": (check_on_two_ranks, st.tuples(divisible_jobs())),
}


@pytest.mark.parametrize("compressor", KINDS, ids=str)
def test_a_drawn_compressor_is_the_one_that_a_job_file_names(compressor: Any) -> None:
    assert build_compressor("compressor", to_table(compressor)) == compressor


@pytest.mark.parametrize(
    ("kind", "jobs"),
    [("simulated", 10), ("killed", 2), ("over the network", 2), ("killed parties", 1), ("on two ranks", 1)],
)
def test_random_jobs_keep_their_promises(kind: str, jobs: int) -> None:
    run_jobs(0, jobs, kind)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("kind", "jobs", "number"),
    [
        *(("simulated", 50, number) for number in range(1, 17)),
        *(("killed", 15, number) for number in range(1, 5)),
        *(("over the network", 15, number) for number in range(1, 5)),
        *(("killed parties", 10, number) for number in range(1, 5)),
        *(("on two ranks", 10, number) for number in range(1, 5)),
    ],
)
def test_many_random_jobs_keep_their_promises(kind: str, jobs: int, number: int) -> None:
    run_jobs(number, jobs, kind)
