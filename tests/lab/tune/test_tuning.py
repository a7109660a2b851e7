"""A recipe for a link, on a job of 96 rows whose computing costs what the job says, so that all of it repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from job.small import JOB, write_job
from thinwire.base.errors import BadInput, Diverged
from thinwire.engine.channel.link import Link
from thinwire.job.job_loader import load_job
from thinwire.lab.tune import Aim, ProbeResult, TuningRequest, TuningResult, Watch, parse_link, tune, tuner
from thinwire.lab.tune.probe import Probe, ProbeSettings, run_probe
from thinwire.lab.tune.search import search
from thinwire.lab.tune.tuner import (
    build_proposal,
    charge_link,
    compute_handling_ms,
    list_overrides,
    measure_step_ms,
    resolve_tuned_job,
)
from thinwire.training.result import meets
from thinwire.training.train import train

SETTINGS = ("job.epochs=12", "link.compute_ms=1.0")
SLOW = parse_link("1mbit,40ms")
AIM = Aim("accuracy", 0.85)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def asked(job: Path) -> TuningRequest:
    return TuningRequest(job, SETTINGS, SLOW, AIM, trials=5)


@pytest.fixture(scope="module")
def tuned(asked: TuningRequest) -> TuningResult:
    return tune(asked)


def test_what_is_proposed_is_the_fastest_of_what_was_probed_with_both_seeds(tuned: TuningResult) -> None:
    assert tuned.proposal is not None
    both = [tuned.svfl, *(one for one in tuned.candidates if len(one.probes) == 2)]
    assert 1 < len(both) <= 4
    assert tuned.proposal.prediction is not None
    for one in both:
        assert one.prediction is None or tuned.proposal.prediction.seconds <= one.prediction.seconds
    assert tuned.beats_svfl == (tuned.proposal is not tuned.svfl)
    assert [probe.seed for probe in tuned.proposal.probes] == [0, 1]


@pytest.mark.long
def test_the_same_seed_gives_the_same_outcome(tuned: TuningResult, asked: TuningRequest) -> None:
    assert tune(asked) == tuned


def test_a_prediction_that_was_reached_is_what_a_run_of_that_recipe_gives(
    tuned: TuningResult, asked: TuningRequest
) -> None:
    """An oracle apart from the probes: the job itself, trained to its end."""
    plain = load_job(asked.job, [*SETTINGS, 'recipe={ method = "svfl" }'])
    plain.link, plain.eval_every, plain.stop = replace(SLOW, compute_ms=1.0), 1, False
    first = next(row for row in train(plain, callbacks=[]).evaluations if meets(row, (AIM.metric, AIM.value)))
    said = tuned.svfl.probes[0].prediction
    assert said is not None
    assert not said.extrapolated
    assert (said.rounds, said.up, said.down) == (first.round, first.bytes.up, first.bytes.down)
    assert said.seconds == pytest.approx(first.link_seconds)


def test_the_proposal_is_verified_with_a_third_seed(tuned: TuningResult) -> None:
    assert tuned.verified is not None
    assert tuned.proposal is not None
    assert tuned.verified.seed == 2
    assert tuned.verified.recipe == tuned.proposal.recipe
    assert tuned.verified.prediction is None or not tuned.verified.prediction.extrapolated


def test_the_proposal_becomes_a_job_file(tuned: TuningResult, asked: TuningRequest, tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text(resolve_tuned_job(asked, tuned))
    loaded = load_job(path)
    assert tuned.proposal is not None
    assert loaded.recipe == load_job(asked.job, list_overrides(asked, tuned)).recipe
    assert loaded.recipe.name == tuned.proposal.recipe["method"]
    assert loaded.link == replace(SLOW, compute_ms=1.0)
    assert loaded.target == (AIM.metric, AIM.value)


def test_without_a_target_it_is_what_svfl_reaches_with_both_seeds(job: Path) -> None:
    tuned = tune(TuningRequest(job, SETTINGS, SLOW, trials=1, rounds=12))
    assert tuned.aim_from == "what svfl reaches"
    assert tuned.svfl.prediction is not None
    best = [max(point.value for point in probe.points) for probe in tuned.svfl.probes]
    assert tuned.aim.value == min(best)


def test_where_nothing_is_faster_svfl_stays(asked: TuningRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(
        ground: ProbeSettings, trials: int, jobs: int, limit: float, told: Callable[[ProbeResult], None]
    ) -> tuple[list[ProbeResult], bool]:
        return [run_probe(Probe(replace(ground, handling_seconds={"svfl": 1.0}), {"method": "svfl"}))], False

    monkeypatch.setattr(tuner, "search", slower)
    found = tune(asked)
    assert found.proposal is found.svfl
    assert not found.beats_svfl
    assert found.verified is not None


def test_a_target_that_nothing_reaches_gives_no_proposal(job: Path) -> None:
    tuned = tune(TuningRequest(job, SETTINGS, SLOW, Aim("accuracy", 1.1), trials=2, rounds=6))
    assert tuned.proposal is None
    assert tuned.verified is None
    assert tuned.to_dict()["proposal"] is None


def test_ctrl_c_gives_the_best_so_far(asked: TuningRequest) -> None:
    seen: list[ProbeResult] = []

    def stop_after_two(one: ProbeResult) -> None:
        seen.append(one)
        if len(seen) == 4:  # svfl twice, and two recipes
            raise KeyboardInterrupt

    found = tune(asked, Watch(probed=stop_after_two))
    assert found.interrupted
    assert len(found.candidates) == 2
    assert found.verified is None
    seconds = [one.prediction.seconds for one in (found.svfl, *found.candidates) if one.prediction is not None]
    assert found.proposal is not None
    assert found.proposal.prediction is not None
    assert found.proposal.prediction.seconds == min(seconds)


@pytest.mark.long
def test_processes_probe_as_this_one_does(tuned: TuningResult, asked: TuningRequest) -> None:
    """What is tried first does not depend on what is found."""
    link = replace(SLOW, compute_ms=1.0)
    ground = ProbeSettings(asked.job, SETTINGS, 0, tuned.rounds, link, "accuracy", AIM, tuned.svfl.probes[0].points)
    told: list[ProbeResult] = []
    probes, _ = search(replace(ground, handling_seconds=tuned.handling_ms), 2, 2, inf, told.append)
    assert told == probes
    assert len(probes) == 2
    for one in probes:
        (twin,) = [other for other in tuned.candidates if other.recipe == one.recipe]
        short, long = sorted((one.points, twin.probes[0].points), key=len)
        assert short  # one may have been given up earlier, but as far as both went they are alike
        assert long[: len(short)] == short


def test_a_probe_ends_where_it_cannot_win(asked: TuningRequest) -> None:
    ground = ProbeSettings(
        asked.job, SETTINGS, 0, 30, replace(SLOW, compute_ms=1.0), "accuracy", Aim("accuracy", 2.0)
    )
    whole = run_probe(Probe(ground, {"method": "svfl"}))
    assert (whole.ended, whole.points[-1].round) == ("rounds", 30)
    limit = whole.points[5].seconds
    short = run_probe(Probe(ground, {"method": "svfl"}, limit_seconds=limit))
    assert short.ended == "pruned"
    assert short.points == whole.points[:7]  # the first past the limit
    asked_to = run_probe(Probe(ground, {"method": "svfl"}), lambda: True)
    assert asked_to.ended == "stopped"


def test_handling_comes_on_top_of_the_clock(asked: TuningRequest) -> None:
    ground = ProbeSettings(asked.job, SETTINGS, 0, 6, replace(SLOW, compute_ms=1.0), "accuracy")
    plain = run_probe(Probe(ground, {"method": "svfl"}))
    slower = run_probe(Probe(replace(ground, handling_seconds={"svfl": 0.25}), {"method": "svfl"}))
    for one, two in zip(plain.points, slower.points, strict=True):
        assert two.seconds - one.seconds == pytest.approx(0.25 * one.round)


def test_a_recipe_that_diverges_is_a_probe_that_failed(asked: TuningRequest) -> None:
    settings = (*SETTINGS, 'optimizer={ name = "sgd", lr = 1e30 }')
    ground = ProbeSettings(asked.job, settings, 0, 6, SLOW, "accuracy")
    one = run_probe(Probe(ground, {"method": "svfl"}))
    assert one.ended == "failed"
    assert one.error
    with pytest.raises(Diverged, match="svfl, the baseline, failed"):
        tune(replace(asked, settings=settings))


# What is measured -----------------------------------------------------------------------------------------


def test_every_party_has_a_step_and_the_job_is_not_trained_by_measuring(job: Path) -> None:
    loaded = load_job(job)
    before = [parameter.clone() for party in loaded.parties for parameter in party.bottom.parameters()]
    found = measure_step_ms(loaded)
    assert list(found) == ["bank", "shop", "clinic"]
    assert all(ms > 0 for ms in found.values())
    after = [parameter for party in loaded.parties for parameter in party.bottom.parameters()]
    assert all(bool((one == two).all()) for one, two in zip(before, after, strict=True))


def test_the_clock_is_charged_what_each_party_takes() -> None:
    ms = {"bank": 3.0, "shop": 5.0, "clinic": 2.0}
    uneven = Link(bandwidth_mbit=10, latency_ms=1, parties={"shop": Link(bandwidth_mbit=2)})
    found = charge_link(uneven, ms, "clinic")
    assert found.compute_ms == 2.0
    assert found.parties["bank"] == Link(bandwidth_mbit=10, latency_ms=1, compute_ms=3.0)
    assert found.parties["shop"] == Link(bandwidth_mbit=2, compute_ms=5.0)
    given = Link(compute_ms=7.0)
    assert charge_link(given, ms, "clinic") is given


def test_handling_is_what_a_round_took_beyond_the_slowest_step() -> None:
    events = [{"round": t, "link_seconds": 0.9 + 0.010 * t if t else 0.0} for t in (0, 3, 6, 9)]
    assert compute_handling_ms(events, {"bank": 4.0, "clinic": 1.0}) == pytest.approx(6.0)
    assert compute_handling_ms(events, {"bank": 40.0}) == 0.0


def test_computing_is_measured_where_the_job_does_not_say(job: Path) -> None:
    tuned = tune(TuningRequest(job, ("job.epochs=4",), SLOW, Aim("accuracy", 0.6), trials=1))
    assert set(tuned.step_ms) == {"bank", "shop", "clinic"}
    assert set(tuned.handling_ms) == {"svfl", "thin", "celu", "efvfl"}
    assert all(ms > 0 for ms in tuned.step_ms.values())


# What is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "asked_for", "message"),
    [
        ((), {"link": None}, "--link is missing, and the job has no"),
        ((), {"aim": Aim("auc", 0.9)}, "'auc' is not among the job's metrics accuracy"),
        ((), {"rounds": 3}, "a probe of 3 rounds is too short"),
        (
            ('job.training={ name = "DPBottom", clip = 1.0, noise_multiplier = 1.0 }',),
            {},
            "job.training: the job has privately trained bottom models, but tune optimises time",
        ),
        (
            (
                'recipe={ method = "svfl", aggregation = { name = "secure_sum", min_parties = 2 } }',
                'recipe.method="pbm"',
                "recipe.trials=16",
                "recipe.beta=0.15",
            ),
            {},
            "recipe: the job has a secure sum",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    job: Path, settings: tuple[str, ...], asked_for: dict[str, object], message: str
) -> None:
    asked = replace(TuningRequest(job, settings, SLOW), **asked_for)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=message):
        tune(asked)


def test_what_protects_labels_is_kept(tmp_path: Path) -> None:
    text = JOB.replace('labels = "private"\n', 'labels = "private"\ndefence = "MaxNorm"\non_outage = "wait"\n')
    path = write_job(tmp_path, text)
    asked = TuningRequest(path, SETTINGS, SLOW, Aim("accuracy", 0.6), trials=1, rounds=8)
    tuned = tune(asked)
    for one in (tuned.svfl, *tuned.candidates):
        assert one.recipe["defence"] == "MaxNorm"
    assert build_proposal(asked, tuned)["defence"] == "MaxNorm"


def test_svfl_that_is_stopped_leaves_nothing_to_propose(
    asked: TuningRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "run_probe", lambda probe: ProbeResult(probe.recipe, 0, (), "stopped"))
    with pytest.raises(KeyboardInterrupt):
        tune(asked)
