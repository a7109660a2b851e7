"""`thinwire serve`: on-line scores; every party runs its half."""

from __future__ import annotations

from pathlib import Path

from thinwire.base.errors import BadInput
from thinwire.cli.output import say, stop_on_signals
from thinwire.cli.predict import open_half, parse_own_file, parse_table


def serve(
    source: Path,
    name: str,
    *,
    run: Path | None = None,
    table: str | None = None,
    features: list[str] = [],
    ids: list[str] = [],
    http: str | None = None,
    settings: list[str] = [],
    yes: bool = False,
    code: list[str] = [],
) -> None:
    """Serve scores online; if the path of the run later points to a new run, it is loaded without downtime."""
    from thinwire.net.links.endpoint import Endpoint
    from thinwire.predict.online.server import FeatureServer, LabelServer
    from thinwire.predict.party_models import find_run

    which = parse_table(table, features)
    files = parse_own_file("--features", features, name), parse_own_file("--ids", ids, name)
    found = find_run(source, name, run, settings, which, code)
    own = found.own
    served = own.serve
    if http is not None:
        try:
            served = served.model_copy(update={"http": str(Endpoint.parse(http))})
        except ValueError as error:
            raise BadInput(f"--http {error}") from None
        if not own.is_label_party:
            raise BadInput(f"only the label party, {own.label_party!r}, takes --http")
    half = open_half(found, files, yes)
    server = LabelServer(half, say, served) if own.is_label_party else FeatureServer(half, say)
    stop_on_signals(server.stop)  # once what is under way is answered
    server.run()
    say("stopped")
