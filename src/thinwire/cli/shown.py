"""Numbers as people read them, and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from thinwire.charts.numbers import bytes_shown, seconds_shown
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from thinwire.job.init_from import InitFrom

__all__ = [
    "AsJson",
    "Fresh",
    "From",
    "JobPath",
    "LogTo",
    "OwnFolder",
    "PartyName",
    "Settings",
    "WithOptimizers",
    "beginning_of",
    "bytes_shown",
    "metrics_shown",
    "prepared_shown",
    "privacy_shown",
    "seconds_shown",
]

JobPath = Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.")]
PartyName = Annotated[str, typer.Option("--name", metavar="PARTY", help="Which party of the job this is.")]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field, such as recipe.compressor.fraction=0.05."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]

OwnFolder = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--out", metavar="DIR", help="This party's folder; runs/<job>/<name> unless given."),
]
LogTo = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--log-to", metavar="NAMES", help="Write there too: tensorboard, mlflow, wandb; commas between."),
]

From = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--from", metavar="RUN", help="Take over the weights of an earlier run; rows and parties may differ."
    ),
]
Fresh = Annotated[
    list[str],
    typer.Option("--fresh", metavar="NAME", help="With --from: begin this party's model anew; top is the top model."),
]
WithOptimizers = Annotated[
    bool, typer.Option("--with-optimizers", help="With --from: take over the optimisers' memory too.")
]


def beginning_of(run: Path | None, fresh: list[str], optimizers: bool) -> InitFrom | None:
    """The earlier run that was named; None where there is none."""
    if run is None:
        if fresh or optimizers:
            raise BadInput("--fresh and --with-optimizers go with --from RUN, the earlier run to begin from")
        return None
    from thinwire.job.init_from import InitFrom

    return InitFrom(run, fresh, optimizers)


def metrics_shown(event: dict[str, Any]) -> str:
    """The training loss and the test metrics, or the training ones where there are no test rows."""
    scores = event["test"] or event["train"]
    said = [f"loss {event['train']['loss']:.4g}"] if "loss" in event["train"] else []
    said += [f"{name} {value:.4g}" for name, value in scores.items() if name != "loss"]
    return ", ".join(said)


def prepared_shown(prepared: dict[str, list[dict[str, Any]]], label: str | None) -> list[str]:
    """What becomes of each column of a table, a line each."""
    lines = []
    for party, columns in prepared.items():
        kept = [column for column in columns if column["outputs"]]
        numbers = sum(column["outputs"] for column in columns)
        lines.append(f"{party}: {len(kept)} of {len(columns)} columns become {numbers} numbers a row")
        longest = min(30, max(len(column["column"]) for column in columns))
        lines += [f"  {column['column']:{longest}}  {column['type']:8}  {column['says']}" for column in columns]
    return lines if label is None else [*lines, label]


def privacy_shown(privacy: list[dict[str, Any]]) -> list[str]:
    """What each feature party's worst-off row has lost, in a line each; one for all where nothing is proven."""
    lines = []
    for ledger in privacy:
        figures = {row["observer"]: row for row in ledger["observers"]}
        if figures["label_party"]["releases_epsilon"] == "infinity":
            continue
        said = [
            f"{_epsilon(row['releases_epsilon'])} of the releases, {_epsilon(row['end_to_end_epsilon'])} end to end "
            f"against {who}"
            for who, row in (("the label party", figures["label_party"]), ("all others", figures["all_others"]))
        ]
        lines.append(f"{ledger['party']}: epsilon {'; '.join(said)} (delta {ledger['delta']:g})")
    if privacy and not lines:
        return ["privacy: embeddings leave without noise, nothing is proven (epsilon is infinite)"]
    return lines


def _epsilon(value: float | str) -> str:
    return "infinite" if isinstance(value, str) else f"{value:.3g}"
