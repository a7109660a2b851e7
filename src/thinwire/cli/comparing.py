"""Runs of one job under several recipes and seeds, in processes of their own, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import BadInput, ThinwireError

__all__ = ["Run", "outcome", "recipe_table"]

# What a method is given where the job does not say.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "svfl": {},
    "fedbcd": {"local_steps": 5},
    "cvfl": {"compressor": {"name": "TopK", "fraction": 0.1}, "labels": "private"},
    "efvfl": {"compressor": {"name": "TopK", "fraction": 0.1}, "labels": "private"},
    "celu": {"capacity": 5, "reuse": 5},
    "pbm": {"trials": 16, "beta": 0.15},
    "thin": {},
}
# Arguments that mean the same in every method that has them; local_steps does not.
_SHARED = {
    "compressor",
    "top_compressor",
    "labels",
    "capacity",
    "reuse",
    "xi_degrees",
    "sampling",
    "overlap",
    "trials",
    "beta",
    "bound",
}


@dataclass(frozen=True)
class Run:
    """One run to make."""

    job: str
    overrides: tuple[str, ...]
    method: str
    seed: int
    out: str  # its folder


def recipe_table(method: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The job's own recipe where it is of that method; else defaults, and what fits of its arguments."""
    from thinwire.job.messages import did_you_mean
    from thinwire.job.registry import list_parameters
    from thinwire.methods import METHODS

    if method not in METHODS:
        raise BadInput(f"--methods: {method!r} is not one of {', '.join(METHODS)}{did_you_mean(method, METHODS)}")
    if str(own.get("method")).lower() == method:
        return {**own, "method": method}
    fits = {key: value for key, value in own.items() if key in _SHARED and key in list_parameters(METHODS[method])}
    return {"method": method, **_DEFAULTS[method], **fits}


def outcome(run: Run) -> dict[str, Any]:
    """The run's numbers, to its target where it has one; or the error that ended it, as text."""
    from thinwire.job import train
    from thinwire.job.job_loader import load_job, resolve_job
    from thinwire.job.job_snapshot import save_job
    from thinwire.job.result import meets

    try:
        overrides = (*run.overrides, "job.stop=false")  # for the best value; the target is read off the history
        job = load_job(Path(run.job), overrides)
        save_job(Path(run.out), resolve_job(Path(run.job), overrides), job)
        result = train(job, out=run.out)
    except ThinwireError as error:
        return {"error": str(error)}
    last = there = result.evaluations[-1]
    reached: bool | None = None
    if job.target is not None:
        met = [one for one in result.evaluations if meets(one, job.target)]
        reached = bool(met)
        there = met[0] if met else there
    return {
        "seed": run.seed,
        "run_dir": run.out,
        "reached": reached,
        "rounds": there.round,
        "bytes_up": there.bytes.up,
        "bytes_down": there.bytes.down,
        "link_seconds": there.link_seconds,
        "best": result.best()["value"],
        "last": last.scores.get(result.metric),
    }
