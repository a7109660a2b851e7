"""`thinwire serve`: on-line scores; every party runs its half."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.options import OwnRun, PartyName, Settings
from thinwire.cli.output import require_approval, say
from thinwire.cli.predict import ApproveAll, TableName, parse_own_file, parse_table

if TYPE_CHECKING:
    from thinwire.job.party_view import PartyView
    from thinwire.predict.online.server import FeatureServer, LabelServer


def serve(
    source: Annotated[
        Path, typer.Argument(metavar="JOB_OR_RUN", help="The job file, or the run folder of this party.")
    ],
    name: PartyName,
    *,
    run: OwnRun = None,
    table: TableName = None,
    features: Annotated[
        list[str],
        typer.Option("--features", metavar="FILE", help="Serve other rows: this party's file with the same columns."),
    ] = [],  # noqa: B006
    ids: Annotated[
        list[str], typer.Option("--ids", metavar="FILE", help="File with the ids of those other rows.")
    ] = [],  # noqa: B006
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="At the label party: address to answer HTTP requests at (default: serve.http of the job).",
        ),
    ] = None,
    settings: Settings = [],  # noqa: B006
    yes: ApproveAll = False,
) -> None:
    """Answer requests for scores; a run's path that leads to a new run later is followed without a break."""
    from thinwire.net.links.endpoint import Endpoint
    from thinwire.net.pki.certificates import load_credentials
    from thinwire.predict.online.server import FeatureServer, LabelServer, ServerSource
    from thinwire.predict.run_source import align_new_rows, find_run

    which = parse_table(table, features)
    file, id_file = parse_own_file("--features", features, name), parse_own_file("--ids", ids, name)
    found = find_run(source, name, run, settings)
    own = found.own
    load_credentials(own.certificate_files, own.certificate_names[name])
    served = own.serve
    if http is not None:
        try:
            served = served.model_copy(update={"http": str(Endpoint.parse(http))})
        except ValueError as error:
            raise BadInput(f"--http {error}") from None
        if not own.is_label_party:
            raise BadInput(f"--http is for the label party, {own.label_party!r}")
    require_approval(own.consent.describe_scoring(_list_allowances(own)), own.me, yes, own.consent)
    new = None if file is None and id_file is None else align_new_rows(found, file, id_file, say)
    sources = ServerSource(found, which, new)
    server = LabelServer(sources, say, served) if own.is_label_party else FeatureServer(sources, say)
    _stop_on_signals(server)
    server.run()
    say("stopped")


def _list_allowances(own: PartyView) -> list[str]:
    """What this feature party's section allows beyond its answers."""
    terms = own.section.serve
    if terms is None or own.is_label_party:
        return []
    lines = []
    if terms.cache_rows is not None:
        lines.append(f"{own.label_party} may keep {terms.cache_rows} of its embeddings for {terms.cache_seconds:g} s")
    if terms.when_missing == "mean":
        lines.append(f"{own.label_party} gets the mean of its training rows' embeddings")
    return lines


def _stop_on_signals(server: FeatureServer | LabelServer) -> None:
    """The first one ends it once what is under way is answered; a second one at once."""
    asked: list[int] = []

    def stop(number: int, _: Any) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        server.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
