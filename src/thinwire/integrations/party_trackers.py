"""Writers of one party's run over the network: they hear what that party knows, and nothing of the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from thinwire.integrations.trackers import Ending, Opening, RunWriter, plain_parameters
from thinwire.job.party_view import PartyView
from thinwire.storage import layout
from thinwire.storage.json_file import parse_object


class PartyWriters:
    """All writers of a run. At the label party evaluations are written; at a feature party its own bytes and time.

    Started again, a party writes all that its folder holds once more. Rounds that it then repeats are written once.
    """

    def __init__(self, writers: Sequence[RunWriter], own: PartyView, folder: Path) -> None:
        self._writers = writers
        self._own = own
        self._folder = folder
        self._rounds: set[int] = set()

    def begin(self) -> None:
        """One that cannot begin keeps the run from starting."""
        begun: list[RunWriter] = []
        history = _read_evaluations(self._folder) if self._own.is_label_party else []
        name = f"{self._folder.resolve().parent.name}-{self._own.me}"
        opening = Opening(name, part_parameters(self._own), self._folder, bool(history))
        try:
            for writer in self._writers:
                writer.open(opening)
                begun.append(writer)
        except BaseException:
            for writer in begun:
                writer.close(None)
            raise
        for event in history:
            self.event(event)

    def event(self, event: Mapping[str, Any]) -> None:
        if self._writers and event["round"] not in self._rounds:
            self._rounds.add(event["round"])
            for writer in self._writers:
                writer(dict(event))

    def round(self, round: int, every: int, known: Callable[[], Mapping[str, Any]]) -> None:
        """At a feature party: what it knows, as seldom as the label party evaluates."""
        if self._writers and not self._own.is_label_party and round % every == 0:
            self.event({"round": round, **known()})

    def end(self, summary: Mapping[str, Any] | None, interrupted: bool) -> None:
        """`summary` is what the party's run left to say; None where it failed, or was stopped within a round."""
        ending = None
        if summary is not None:
            self._last_word(summary)
        if summary is not None or interrupted:
            last = max(self._rounds, default=0) if summary is None else int(summary["rounds"])
            ending = Ending(interrupted, last, self._folder, self._report)
        for writer in self._writers:
            writer.close(ending)

    def _last_word(self, summary: Mapping[str, Any]) -> None:
        """Of a feature party: the round after the last that it was asked about."""
        if not self._own.is_label_party:
            sent, received = summary["sent_bytes"], summary["received_bytes"]
            told = {"round": summary["rounds"], "epoch": summary["epochs"], "seconds": summary["seconds"]}
            self.event({**told, "bytes": {"sent": sent, "received": received}})

    def _report(self, path: Path) -> Path | None:
        """A copy of the folder's; a run that was stopped has none yet."""
        kept = self._folder / layout.REPORT
        return Path(shutil.copyfile(kept, path)) if kept.is_file() else None


def part_parameters(own: PartyView) -> dict[str, str | int | float]:
    """What this party was asked to do: no data, no paths, and of the others their names alone."""
    settings = own.settings
    return plain_parameters(
        own.recipe,
        {
            "party": own.me,
            "seed": settings.seed,
            "epochs": settings.epochs,
            "batch_size": settings.batch_size,
            "eval_every": settings.eval_every,
            "optimizer": str(own.optimizer),
            "feature_parties": ", ".join(own.feature_parties),
            "label_party": own.label_party,
            "training": str(own.settings.training),
        },
    )


def _read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """Evaluations of processes before this one; the last line may be half written."""
    file = folder / layout.EVENTS
    found = [parse_object(line) for line in file.read_bytes().splitlines()] if file.is_file() else []
    return [event for event in found if event is not None and isinstance(event.get("round"), int)]
