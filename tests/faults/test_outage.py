"""on_outage = "continue": while a party is away the others learn from what they have kept, and the run finishes."""

from __future__ import annotations

import json
from time import sleep

import pytest

from faults.conftest import Stage
from faults.running import EVERYBODY, LABEL, JobKind

REUSE = 6
KIND = JobKind(
    recipe=f'{{ method = "celu", capacity = 3, reuse = {REUSE}, local_steps = 1, on_outage = "continue" }}', epochs=15
)


@pytest.mark.faults
@pytest.mark.parametrize("away", ["shop", LABEL])
def test_the_others_go_on_within_their_bounds(stage: Stage, away: str) -> None:
    """Not claimed to be identical; each kept exchange is used R times at most, whoever is away for how long."""
    with stage.run(KIND, pause_ms=5) as run:
        uses = {name: run.site.folder / f"uses-{name}.txt" for name in EVERYBODY}
        for name in EVERYBODY:
            run.plans[name] = [{"note_uses": str(uses[name])}]
        run.start_all()
        run.await_round(LABEL, 20)
        before = {name: len(path.read_text().splitlines()) for name, path in uses.items()}
        run.kill(away)
        stage.tally.inject("kills")
        stage.tally.inject("outages")
        sleep(12)
        during = {name: len(path.read_text().splitlines()) - before[name] for name, path in uses.items()}
        run.start(away)
        run.finish()
        stage.tally.survive()
        stage.tally.not_compared()
        for name, path in uses.items():
            used = [json.loads(line) for line in path.read_text().splitlines()]
            counts = [used.count(round) for round in set(used)]
            if name != away:  # who was killed repeats steps whose outcome was lost
                assert max(counts, default=0) <= REUSE, name
        assert any(during[name] > 0 for name in EVERYBODY if name != away), during
