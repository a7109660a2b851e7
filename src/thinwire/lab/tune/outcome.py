"""What tuning found: the proposal beside svfl, what was measured, what is predicted, how it was checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.base.format import format_seconds
from thinwire.base.types import PartyName
from thinwire.engine.channel.link import Link
from thinwire.lab.tune.probe import Aim, Prediction, ProbeResult, best_value

_MBIT = {"k": 1e-3, "m": 1.0, "g": 1e3}
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?([kmg])(?:bit|bit/s|bits/s|bps)", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(us|ms|s)", re.IGNORECASE)


def parse_link(text: str) -> Link:
    """RATE,RTT: bits per second both ways, and the round trip, of which the link's latency is half."""
    rate_text, _, time_text = (part.strip() for part in text.partition(","))
    rate, time = _RATE.fullmatch(rate_text), _TIME.fullmatch(time_text)
    if rate is None or time is None or not float(rate[1]):
        raise BadInput(
            "--link: write RATE,RTT, bits per second in kbit, mbit or gbit and the round trip in us, ms or s, as "
            f"in --link 100mbit,40ms; got {text!r}"
        )
    round_trip_ms = float(time[1]) * _MS[time[2].lower()]
    return Link(bandwidth_mbit=float(rate[1]) * _MBIT[rate[2].lower()], latency_ms=round_trip_ms / 2)


def format_link(link: Link) -> str:
    """In words, with both directions where they differ."""
    down = (
        link.bandwidth_mbit if link.down_bandwidth_mbit is None else link.down_bandwidth_mbit,
        link.latency_ms if link.down_latency_ms is None else link.down_latency_ms,
    )
    rate = f"{link.bandwidth_mbit:g} Mbit/s" + ("" if down[0] == link.bandwidth_mbit else f" up, {down[0]:g} down")
    others = f", other links for {', '.join(link.parties)}" if link.parties else ""
    return f"{rate}, round trip {link.latency_ms + down[1]:g} ms{others}"


# What tuning found: the proposal beside svfl, what was measured and what is predicted, and how it was checked -----


@dataclass(frozen=True)
class Candidate:
    """A recipe and its probes, one a seed."""

    probes: tuple[ProbeResult, ...]

    @property
    def recipe(self) -> Mapping[str, Any]:
        return self.probes[0].recipe

    @property
    def prediction(self) -> Prediction | None:
        """The mean over the seeds; None where one of them says nothing."""
        said = [one.prediction for one in self.probes if one.prediction is not None]
        if len(said) < len(self.probes):
            return None
        means = {name: fmean(getattr(one, name) for one in said) for name in ("up", "down", "seconds")}
        extrapolated = any(one.extrapolated for one in said)
        return Prediction(round(fmean(one.rounds for one in said)), **means, extrapolated=extrapolated)

    @property
    def seconds(self) -> float:
        """To the target; infinite where a seed says nothing."""
        return fmean(one.seconds for one in self.probes)

    def to_dict(self, metric: str) -> dict[str, Any]:
        return {
            "recipe": dict(self.recipe),
            "to_target": _cost(self.prediction),
            "probes": [_probe(one, metric) for one in self.probes],
        }


@dataclass(frozen=True)
class TuningResult:
    """The whole outcome."""

    link: Link
    aim: Aim
    aim_from: str
    rounds: int  # maximum per probe
    step_ms: Mapping[PartyName, float]
    handling_ms: Mapping[str, float]  # a round, by method
    svfl: Candidate
    candidates: Sequence[Candidate]  # all others
    proposal: Candidate | None  # svfl where nothing beats it; None where nothing reached the target
    verified: ProbeResult | None = None  # the proposal with a third seed, its computing charged as it really took
    interrupted: bool = False

    @property
    def beats_svfl(self) -> bool:
        return self.proposal is not None and self.proposal is not self.svfl

    @property
    def refutation(self) -> str | None:
        """Why the run that verifies the proposal contradicts it; None where it bears it out, or was not made."""
        run = self.verified
        if run is None:
            return None
        if run.error is not None:
            return f"with seed {run.seed} it failed: {run.error}"
        if run.prediction is None:
            made = run.points[-1].round if run.points else 0
            return f"with seed {run.seed} it did not reach {self.aim.metric} {self.aim.value:.4g} in {made} rounds"
        base = self.svfl.prediction
        if self.beats_svfl and base is not None and run.prediction.seconds >= base.seconds:
            took, beside = format_seconds(run.prediction.seconds), format_seconds(base.seconds)
            return f"with seed {run.seed} it took {took} on the link, svfl {beside}"
        return None

    def list_best(self) -> list[Candidate]:
        """svfl, all that were probed with as many seeds, and the best of every other method."""
        rest = sorted(self.candidates, key=self._rank)
        found = [one for one in rest if len(one.probes) > 1]
        for one in rest:
            if one.recipe["method"] not in {other.recipe["method"] for other in found}:
                found.append(one)
        return [self.svfl, *found]

    def _rank(self, one: Candidate) -> tuple[int, float]:
        """What is predicted, by its seconds; what is not, by how near it came."""
        if one.prediction is not None:
            return 0, one.seconds
        points = [point for probe in one.probes for point in probe.points]
        return (1, abs(best_value(points, self.aim.metric) - self.aim.value)) if points else (2, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """As `thinwire tune --json` prints it."""
        metric = self.aim.metric
        return {
            "link": {
                "bandwidth_mbit": self.link.bandwidth_mbit,
                "latency_ms": self.link.latency_ms,
                "said": format_link(self.link),
            },
            "target": {"metric": metric, "value": self.aim.value, "from": self.aim_from},
            "rounds": self.rounds,
            "measured": {"step_ms": dict(self.step_ms), "handling_ms": dict(self.handling_ms)},
            "svfl": self.svfl.to_dict(metric),
            "proposal": None if self.proposal is None else self.proposal.to_dict(metric),
            "beats_svfl": self.beats_svfl,
            "candidates": [one.to_dict(metric) for one in self.candidates],
            "verified": None if self.verified is None else _probe(self.verified, metric),
            "refuted": self.refutation,
            "interrupted": self.interrupted,
        }


def _probe(one: ProbeResult, metric: str) -> dict[str, Any]:
    return {
        "seed": one.seed,
        "ended": one.ended,
        "error": one.error,
        "rounds": one.points[-1].round if one.points else 0,
        "best": best_value(one.points, metric) if one.points else None,
        "to_target": _cost(one.prediction),
    }


def _cost(said: Prediction | None) -> dict[str, Any] | None:
    return None if said is None else {**asdict(said), "total": said.total}
