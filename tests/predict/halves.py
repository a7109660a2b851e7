"""A trained job whose parties predict as threads: real gRPC, mutual TLS and folders between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

import thinwire as tw
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.job_snapshot import save_job
from thinwire.job.party_view import PartyView, read_party_view
from thinwire.job.row_selection import RowSet
from thinwire.job.schema import ServeTerms
from thinwire.predict.embedding_client import EmbeddingClient
from thinwire.predict.embedding_server import EmbeddingServer
from thinwire.predict.model_store import RunFolder
from thinwire.predict.party_models import FeatureModel, LabelModel, NewRows, RunSource
from thinwire.predict.run import TrainedRun, load_run, read_own_rows
from thinwire.predict.score_file import score_over_network
from training.party.parties import LABEL_PARTY, Place

PATIENCE = 300.0


def trained(place: Place, name: str = "simulated") -> Path:
    """A run of the simulator, as `thinwire train` leaves it."""
    out, job = place.out(name), load_job(place.job)
    save_job(out, resolve_job(place.job), job)
    tw.train(job, callbacks=[], out=out)
    return out


class Answering:
    """A feature party in a thread of its own."""

    def __init__(
        self, own: PartyView, folder: Path, which: RowSet | None, terms: ServeTerms, new: NewRows | None = None
    ) -> None:
        self.sentences: list[str] = []
        model = FeatureModel(RunSource(own, folder, which, new), RunFolder(folder))
        self.party = EmbeddingServer(own, model, terms, self.sentences.append)
        self.error: BaseException | None = None
        self._thread = Thread(target=self._run, name=f"party {own.me}")

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        self.party.start()
        try:
            self.party.wait(PATIENCE)
        except BaseException as error:  # noqa: BLE001  shown where the thread is joined
            self.error = error
        finally:
            self.party.close()

    def end(self) -> None:
        """As if it were killed: the label party hears nothing of it but the end of the line."""
        self.party.stop()
        self._thread.join(PATIENCE)


@contextmanager
def predicting(
    place: Place, folders: dict[str, Path], which: RowSet | None = None, terms: dict[str, ServeTerms] | None = None
) -> Iterator[tuple[EmbeddingClient, dict[str, Answering]]]:
    """All parties, connected or about to be."""
    label = read_party_view(place.job, LABEL_PARTY)
    folder = folders[LABEL_PARTY]
    model = LabelModel(RunSource(label, folder, which), RunFolder(folder))
    asking = EmbeddingClient(label, model, lambda _: None)
    others = {
        name: Answering(read_party_view(place.job, name), folders[name], which, (terms or {}).get(name, ServeTerms()))
        for name in place.feature_parties
    }
    asking.start()
    try:
        for one in others.values():
            one.start()
        yield asking, others
    finally:
        asking.close({"done": True})
        for one in others.values():
            one.end()


def asked(asking: EmbeddingClient, rows: Tensor) -> Tensor:
    return torch.cat(list(score_over_network(asking, rows, PATIENCE)))


def simulated_outputs(folder: Path, which: RowSet | None = None, rows: Any = None) -> tuple[TrainedRun, Tensor]:
    run = load_run(folder)
    held = read_own_rows(run, which)
    chosen = torch.arange(held.count) if rows is None else rows
    return run, torch.cat(list(run.score_rows(held.tables, chosen, held.counted, held.owners)))
