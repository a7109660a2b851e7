"""`thinwire party`: one real party in this process, over gRPC and mutual TLS."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.base.format import format_bytes, format_seconds
from thinwire.cli.clean import apply_retention
from thinwire.cli.options import parse_init_from, parse_trackers
from thinwire.cli.output import (
    format_baselines,
    format_privacy,
    format_quality,
    print_result,
    require_approval,
    stop_on_signals,
    stop_with,
)
from thinwire.report.progress import ProgressLine, format_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from thinwire.integrations.trackers import PartyWriters
    from thinwire.job.party_view import PartyView
    from thinwire.training.party.life_cycle import PartyOutcome
    from thinwire.training.party.party_run import PartyRun
    from thinwire.training.ranks.ranks import Ranks


def party(
    job: Path,
    name: str,
    *,
    settings: list[str] = [],
    out: Path | None = None,
    yes: bool = False,
    from_run: Path | None = None,
    fresh: list[str] = [],
    with_optimizers: bool = False,
    metrics: str | None = None,
    log_to: str | None = None,
    code: list[str] = [],
    as_json: bool = False,
) -> None:
    """Run one party of a job; run the same command again to resume."""
    from thinwire.integrations.trackers import PartyWriters
    from thinwire.job.own_code import CodeSources
    from thinwire.job.party_view import read_party_view
    from thinwire.training.party.metrics import MetricsServer
    from thinwire.training.party.party_run import Audience
    from thinwire.training.party.session import Interrupted
    from thinwire.training.party.startup import open_party_run
    from thinwire.training.ranks.rank_share import join_party_ranks
    from thinwire.training.ranks.ranks import is_group

    address = None if metrics is None else _parse_address(metrics)
    named = parse_trackers(log_to)
    beginning = parse_init_from(from_run, fresh, with_optimizers)
    own = read_party_view(job, name, settings, CodeSources.beside(job, code))
    ranks = join_party_ranks(own) if is_group() else None
    if ranks is not None and not ranks.is_first:
        _follow(own, ranks)
        return
    own.network_party.load_credentials()
    consent = own.consent
    require_approval(consent.describe_training(), consent.me, yes, consent)
    folder = out or Path("runs") / job.stem / own.me
    shown = _PartyOutput(own, PartyWriters(named, own, folder))
    with nullcontext() if ranks is None else ranks.leading():
        with ProgressLine(f"{own.me}: reading the tables", 0) as progress:
            own = replace(own, on_progress=progress.follower)
            run = open_party_run(own, folder, Audience(shown.say, shown.event, shown.round), beginning, ranks)
        served = None if address is None else MetricsServer(address, run)
        stop_on_signals(run.session.stopping.ask)  # after this round, or at once: nothing is lost either way
        try:
            outcome = shown.execute(run)
        except Interrupted as stopped:
            raise stop_with(str(stopped)) from None
        finally:
            if served is not None:
                served.close()
    print_result(outcome.summary, as_json, _format_summary(outcome.summary))
    if outcome.interrupted:
        raise stop_with("stopped; run the same command again to resume")
    apply_retention(folder)


def _follow(own: PartyView, ranks: Ranks) -> None:
    """One of this party's other processes: rank 0 speaks to the world, and ends it."""
    from thinwire.training.ranks.rank_share import follow_party

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # rank 0 needs this one to end its round
    follow_party(own, ranks)
    ranks.leave()


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"--metrics must be PORT or HOST:PORT, got {text!r}")
    return host or "127.0.0.1", int(port)


class _PartyOutput:
    """Lines on stderr: what happens, and every evaluation; on a terminal a line that moves. Writers get the same."""

    def __init__(self, own: PartyView, writers: PartyWriters) -> None:
        self._me = own.me
        self._writers = writers
        self._progress = ProgressLine(f"{own.me}: {own.recipe.name}", 0, "round ")
        self._run: PartyRun | None = None

    def execute(self, run: PartyRun) -> PartyOutcome:
        """The run, with the writers told of its beginning and its end."""
        from thinwire.training.party.session import Interrupted

        self._run = run
        summary, interrupted = None, False
        try:
            self._writers.begin()
        except BaseException:
            run.close()
            raise
        try:
            with self._progress:
                outcome = run.execute()
            summary, interrupted = outcome.summary, outcome.interrupted
        except (Interrupted, KeyboardInterrupt):
            interrupted = True
            raise
        finally:
            self._writers.end(summary, interrupted)
        return outcome

    def say(self, sentence: str) -> None:
        line = f"{self._me}: {sentence}"
        if self._progress.moves:
            self._progress.note(line)
        else:  # rich would end a process whose pipe is gone
            typer.echo(line, err=True)

    def event(self, event: dict[str, Any]) -> None:
        self._writers.event(event)
        self.say(f"round {event['round']}: {format_metrics(event)}, {format_bytes(event['bytes']['total'])}")

    def round(self, round: int) -> None:
        """Rounds are too many to tell; writers hear of some."""
        if self._run is not None:
            every = self._run.session.own.settings.eval_every or self._run.batches.rounds_per_epoch
            self._writers.round(round, every, partial(_describe_progress, self._run, round))
            if self._progress.moves:
                self._progress.total = self._run.batches.rounds  # a privacy budget may allow fewer than planned
                self._progress.move(round, _format_bytes(_describe_progress(self._run, round)["bytes"]))


def _describe_progress(run: PartyRun, round: int) -> dict[str, Any]:
    """What any party can tell of its own run."""
    session = run.session
    me = {session.own.me}
    sent, received = session.ledger.total(senders=me).bytes, session.ledger.total(receivers=me).bytes
    return {
        "epoch": run.batches.epoch(round),
        "bytes": {"sent": sent, "received": received},
        "seconds": session.seconds(),
    }


def _format_bytes(counted: Mapping[str, int]) -> str:
    return f"{format_bytes(counted['sent'])} sent, {format_bytes(counted['received'])} received"


def _format_summary(summary: dict[str, Any]) -> Iterator[str]:
    seconds = format_seconds(summary["seconds"])
    yield f"{summary['party']}: {summary['rounds']} rounds of {summary['method']} in {seconds}"
    if summary.get("train"):
        yield f"  {format_metrics(summary)}"
    if summary.get("quality"):
        yield f"  test rows: {format_quality(summary['quality'])}"
    for line in format_baselines(summary):
        yield f"  {line}"
    yield (
        f"  {format_bytes(summary['sent_bytes'])} sent, {format_bytes(summary['received_bytes'])} received "
        f"({format_bytes(summary['retransmitted_bytes'])} resent)"
    )
    for line in format_privacy(summary.get("privacy", [])):
        yield f"  {line}"
    yield f"  state {summary['digest'][:16]}, run: {summary['run_dir']}"
    from thinwire.storage import layout

    report = Path(summary["run_dir"]) / layout.REPORT
    if report.is_file():
        yield f"  report: {report}"
