"""The proposal as a job file that `thinwire train` takes."""

from __future__ import annotations

from typing import Any

from thinwire.job.job_file import read_job_file
from thinwire.job.job_loader import resolve_job
from thinwire.job.toml_text import inline
from thinwire.lab.tune.tuned import Tuned
from thinwire.lab.tune.tuning import Asked


def proposed_recipe(asked: Asked, tuned: Tuned) -> dict[str, Any]:
    """The proposal, and what the job says of scoring, and of outages where cached steps can follow it."""
    recipe = {} if tuned.proposal is None else dict(tuned.proposal.recipe)
    own = read_job_file(asked.job, asked.settings).recipe
    if "on_outage" in own and recipe.get("reuse", 1) > 1:
        recipe["on_outage"] = own["on_outage"]
    if "scoring" in own:
        recipe["scoring"] = own["scoring"]
    return recipe


def overrides(asked: Asked, tuned: Tuned) -> list[str]:
    """What turns the job into the proposed one, as --set takes it."""
    found = [*asked.settings, f"recipe={inline(proposed_recipe(asked, tuned))}"]
    if asked.link is not None:
        link = {"bandwidth_mbit": tuned.link.bandwidth_mbit, "latency_ms": tuned.link.latency_ms}
        link |= {} if tuned.link.compute_ms is None else {"compute_ms": tuned.link.compute_ms}
        found.append(f"link={inline(link)}")
    return [*found, f"job.target={inline({'metric': tuned.aim.metric, 'value': tuned.aim.value})}"]


def tuned_job(asked: Asked, tuned: Tuned) -> str:
    """The whole job file, its paths absolute."""
    return resolve_job(asked.job, overrides(asked, tuned))
