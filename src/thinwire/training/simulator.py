"""A job's parties in one process: their contexts, ends and programs, and what only a simulator can look at."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import Lock, local

import torch
from torch import Tensor

from thinwire.base.types import PartyName
from thinwire.engine.channel.simulated import Simulation
from thinwire.engine.compress.randomness import keep_generator
from thinwire.engine.models.fusion import fuse
from thinwire.engine.privacy import Labels, in_process_identities
from thinwire.engine.privacy.keys import derive_key, frame_values
from thinwire.engine.programs.program import Control, FeatureProgram, LabelProgram, Observers, Program
from thinwire.engine.protocols.context import cast_like
from thinwire.engine.protocols.evaluation import compute_outputs, embed_in_chunks, evaluation_mode
from thinwire.engine.protocols.sealing import NoChargeLog, Spending
from thinwire.engine.streams import Direct, Storage
from thinwire.job.job import Job
from thinwire.training.program_factory import PartySecrets, ProgramFactory

_CHUNK = 8192
_ONE_AT_A_TIME = Lock()  # runs of one process would seed each other's generator
_THREAD = local()  # `plays`: it is a party's, in a run that holds the lock


class SimulatedParties:
    """All programs of a job on one simulation."""

    def __init__(self, job: Job, observers: Observers, noise_secret: bytes, storage: Storage | None = None) -> None:
        """`storage` is the job's unless given."""
        self.job = job
        settings = job.settings if storage is None else replace(job.settings, storage=storage)
        self.widths = job.check()
        ledgers = job.open_ledgers(self.widths)
        self.spending = {
            name: Spending(ledger, job.rows, NoChargeLog(), job.validation_rows) for name, ledger in ledgers.items()
        }
        self.control = Control()
        names = job.names
        label = job.label_party
        self.batches = job.limit_rounds(self.widths)
        factory = ProgramFactory(
            names,
            label.name,
            job.recipe,
            job.optimizer,
            settings,
            self.batches,
            job.rows,
            job.memories,
            owners=job.owners,
        )
        self.simulation = Simulation([*names, label.name], factory.run, label_party=label.name, link=job.link)
        self.side = factory.side(label)
        identities = in_process_identities(names)
        shared = self.side if job.recipe.labels is Labels.SHARED else None
        self.features: list[FeatureProgram] = []
        for party in job.parties:
            context = factory.context(party.name, self.simulation.channel(party.name))
            own = PartySecrets(
                identities[party.name], own_secret(noise_secret, party.name), self.spending[party.name]
            )
            self.features.append(
                factory.feature_program(party, context, self.widths, self.control, own=own, side=shared)
            )
        self.label = factory.label_program(
            label,
            self.side,
            factory.context(label.name, self.simulation.channel(label.name)),
            self.widths,
            self.control,
            secret=own_secret(noise_secret, label.name),
            observers=observers,
        )
        self._features = [party.features.to(job.device) for party in job.parties]
        self._indices = [None if party.group is None else party.group.to(job.device) for party in job.parties]
        self._own_features = None if label.features is None else label.features.to(job.device)

    @property
    def programs(self) -> list[FeatureProgram | LabelProgram]:
        return [*self.features, self.label]

    def run(self) -> None:
        """Runs to the end, to the target, or until Ctrl-C has stopped every party after the same round."""
        programs = {program.context.me: partial(_play, program) for program in self.programs}
        # A callback may train too: its run has the turn of the one that called it.
        turn = nullcontext() if getattr(_THREAD, "plays", False) else _ONE_AT_A_TIME
        # Programs seed torch's generator before every forward; whoever called us keeps his.
        with turn, keep_generator():
            self.simulation.run(programs, on_interrupt=self.control.stop)

    # Looking, as only a simulator can ---------------------------------------------------------------------

    def training_outputs(self) -> Tensor:
        """The outputs of all training rows at the present weights, without compression."""
        top, fusion = self.side.top.module, self.side.fusion
        # A chunk of every party's at a time: all embeddings of all rows may be more than memory holds.
        return torch.cat(
            [compute_outputs(top, fusion, self._tables(start)) for start in range(0, self.job.rows, _CHUNK)]
        )

    def _tables(self, start: int = 0, size: int = _CHUNK) -> list[Tensor]:
        """Every party's embeddings of `size` rows, without compression."""
        rows = slice(start, start + size)
        pairs = zip(self.features, self._features_of(rows), strict=True)
        tables = [embed_in_chunks(program.bottom.module, features) for program, features in pairs]
        if self.side.bottom is not None and self._own_features is not None:
            tables.append(embed_in_chunks(self.side.bottom.module, self._own_features[rows]))
        return tables

    def _features_of(self, rows: slice) -> list[Tensor]:
        """Every feature party's, an owner's in each of its rows."""
        pairs = zip(self._features, self._indices, strict=True)
        return [table[rows] if index is None else table.index_select(0, index[rows]) for table, index in pairs]

    def gradient_square(self) -> float:
        """|gradient of the mean training loss|^2 over the parameters of all parties that learn."""
        modules = [program.bottom.module for program in self.features] + [self.side.top.module]
        own = None if self.side.bottom is None else self._own_features
        if self.side.bottom is not None:
            modules.insert(-1, self.side.bottom.module)
        with evaluation_mode(*modules), torch.enable_grad():
            for start in range(0, self.job.rows, _CHUNK):
                rows = slice(start, start + _CHUNK)
                tables = [*self._features_of(rows), *(() if own is None else (own[rows],))]
                h = [module(table) for module, table in zip(modules, tables, strict=False)]
                fused = fuse(self.side.fusion, [cast_like(self.side.like(), part) for part in h])
                losses = self.side.loss(self.side.top.module(fused), self.side.labels[rows])
                losses = losses if self.side.weights is None else losses * self.side.weights[rows].to(losses)
                if losses.requires_grad:
                    (losses.sum() / self.job.rows).backward()
        learners = [*(program.bottom for program in self.features), self.side.bottom, self.side.top]
        trained = [parameter for one in learners if one is not None for parameter in one.trained]
        total = sum(float(p.grad.double().square().sum()) for p in trained if p.grad is not None)
        for module in modules:
            module.zero_grad()
        return total

    def distortion(self) -> dict[PartyName, float]:
        """|G_k - H_k|^2 over all rows, or owners of rows, under error feedback; else |C(H_k) - H_k|^2."""
        found = {}
        for program, features in zip(self.features, self._features, strict=True):
            table = embed_in_chunks(program.bottom.module, features)
            estimate = program.end.estimate()
            uplink = self.job.recipe.uplink
            if estimate is None and isinstance(uplink, Direct):
                rng = torch.Generator().manual_seed(self.job.seed)
                estimate = uplink.compressor.compress(table, rng).to_tensor()
            if estimate is not None:
                found[program.context.me] = float((estimate - table.cpu()).double().square().sum())
        return found


def _play(program: Program) -> bool:
    _THREAD.plays = True
    return program.run()


def own_secret(noise_secret: bytes, party: PartyName) -> bytes:
    """One for each party, as each has its own over the network."""
    return derive_key(noise_secret, frame_values("thinwire simulated party 1", party))
