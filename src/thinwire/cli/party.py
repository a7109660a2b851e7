"""`thinwire party`: one real party in this process, over gRPC and mutual TLS."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.base.format import format_bytes, format_seconds
from thinwire.cli.clean import apply_retention
from thinwire.cli.options import (
    AsJson,
    Fresh,
    From,
    JobPath,
    LogTo,
    OwnFolder,
    PartyName,
    Settings,
    WithOptimizers,
    parse_init_from,
    parse_trackers,
)
from thinwire.cli.output import format_privacy, print_result, require_approval, stop_with
from thinwire.report.progress import format_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from thinwire.integrations.party_trackers import PartyWriters
    from thinwire.job.party_view import PartyView
    from thinwire.training.party.life_cycle import PartyOutcome
    from thinwire.training.party.party_run import PartyRun
    from thinwire.training.ranks.ranks import Ranks


def party(
    job: JobPath,
    name: PartyName,
    *,
    settings: Settings = [],  # noqa: B006
    out: OwnFolder = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Approve the recipe, and who sees what, without asking.")
    ] = False,
    from_run: From = None,
    fresh: Fresh = [],  # noqa: B006
    with_optimizers: WithOptimizers = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve Prometheus metrics at /metrics on this port (default host: 127.0.0.1).",
        ),
    ] = None,
    log_to: LogTo = None,
    as_json: AsJson = False,
) -> None:
    """Run one party of a job; the same command again goes on where it stopped."""
    from thinwire.integrations.party_trackers import PartyWriters
    from thinwire.job.party_view import read_party_view
    from thinwire.net.pki.certificates import load_credentials
    from thinwire.training.party.metrics import MetricsServer
    from thinwire.training.party.party_run import Audience
    from thinwire.training.party.session import Interrupted
    from thinwire.training.party.startup import open_party_run
    from thinwire.training.ranks.rank_share import join_party_ranks
    from thinwire.training.ranks.ranks import is_group

    address = None if metrics is None else _parse_address(metrics)
    named = parse_trackers(log_to)
    beginning = parse_init_from(from_run, fresh, with_optimizers)
    own = read_party_view(job, name, settings)
    ranks = join_party_ranks(own) if is_group() else None
    if ranks is not None and not ranks.is_first:
        _follow(own, ranks)
        return
    load_credentials(own.certificate_files, own.certificate_names[own.me])
    consent = own.consent
    require_approval(consent.describe_training(), consent.me, yes, consent)
    folder = out or Path("runs") / job.stem / own.me
    shown = _PartyOutput(own.me, PartyWriters(named, own, folder))
    with nullcontext() if ranks is None else ranks.leading():
        run = open_party_run(own, folder, Audience(shown.say, shown.event, shown.round), beginning, ranks)
        served = None if address is None else MetricsServer(address, run)
        _stop_on_signals(run)
        try:
            outcome = shown.execute(run)
        except Interrupted as stopped:
            raise stop_with(str(stopped)) from None
        finally:
            if served is not None:
                served.close()
    print_result(outcome.summary, as_json, _format_summary(outcome.summary))
    if outcome.interrupted:
        raise stop_with("stopped; start the same command again to go on")
    apply_retention(folder)


def _follow(own: PartyView, ranks: Ranks) -> None:
    """One of this party's other processes: rank 0 speaks to the world, and ends it."""
    from thinwire.training.ranks.rank_share import follow_party

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # rank 0 needs this one to end its round
    follow_party(own, ranks)
    ranks.leave()


def _stop_on_signals(run: PartyRun) -> None:
    """The first one ends after this round; a second Ctrl-C at once. Either way nothing is lost."""

    def stop(number: int, _: Any) -> None:
        if run.session.stopping.is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        run.session.stopping.ask()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"--metrics must be PORT or HOST:PORT, got {text!r}")
    return host or "127.0.0.1", int(port)


class _PartyOutput:
    """Lines on stderr: what happens, and every evaluation. Writers get the same."""

    def __init__(self, me: str, writers: PartyWriters) -> None:
        self._me = me
        self._writers = writers
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
            outcome = run.execute()
            summary, interrupted = outcome.summary, outcome.interrupted
        except (Interrupted, KeyboardInterrupt):
            interrupted = True
            raise
        finally:
            self._writers.end(summary, interrupted)
        return outcome

    def say(self, sentence: str) -> None:
        typer.echo(f"{self._me}: {sentence}", err=True)

    def event(self, event: dict[str, Any]) -> None:
        self._writers.event(event)
        self.say(f"round {event['round']}: {format_metrics(event)}, {format_bytes(event['bytes']['total'])}")

    def round(self, round: int) -> None:
        """Rounds are too many to tell; writers hear of some."""
        if self._run is not None:
            every = self._run.session.own.settings.eval_every or self._run.batches.rounds_per_epoch
            self._writers.round(round, every, partial(_describe_progress, self._run, round))


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


def _format_summary(summary: dict[str, Any]) -> Iterator[str]:
    seconds = format_seconds(summary["seconds"])
    yield f"{summary['party']}: {summary['rounds']} rounds of {summary['method']} in {seconds}"
    if summary.get("train"):
        yield f"  {format_metrics(summary)}"
    yield (
        f"  {format_bytes(summary['sent_bytes'])} sent, {format_bytes(summary['received_bytes'])} received"
        f" ({format_bytes(summary['retransmitted_bytes'])} sent again)"
    )
    for line in format_privacy(summary.get("privacy", [])):
        yield f"  {line}"
    yield f"  state {summary['digest'][:16]}, run: {summary['run_dir']}"
    from thinwire.storage import layout

    report = Path(summary["run_dir"]) / layout.REPORT
    if report.is_file():
        yield f"  report: {report}"
