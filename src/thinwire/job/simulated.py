"""A job's parties in one process: their seats, ends and programs, and what only a simulator can look at."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.conversations import derivatives, representations
from thinwire.conversations.evaluation import embedded, outputs
from thinwire.conversations.label_side import LabelSide
from thinwire.conversations.learner import Learner
from thinwire.conversations.seat import Seat, on
from thinwire.conversations.sums import Sealing
from thinwire.job.job import Job
from thinwire.models.fusion import fuse
from thinwire.party import Control, Evaluated, FeatureParty, FeatureProgram, LabelProgram
from thinwire.privacy import Labels, NoiseKey, SecureSum, in_process_keys
from thinwire.seeds import derived_seed
from thinwire.streams import Direct
from thinwire.transport.simulated import Simulation
from thinwire.types import PartyName

__all__ = ["SimulatedParties"]

_CHUNK = 8192
_ONE_AT_A_TIME = Lock()  # runs of one process would seed each other's generator


class SimulatedParties:
    """All programs of a job on one simulation."""

    def __init__(
        self,
        job: Job,
        at_rest: Callable[[Evaluated], bool],
        noise_secret: bytes,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        self.job = job
        self.widths = job.check()
        self.batches = job.batching()
        self.control = Control()
        self.eval_every = job.eval_every or self.batches.rounds_per_epoch
        names = [party.name for party in job.parties]
        run = derived_seed(job.recipe.digest(), job.seed, *names)
        self.simulation = Simulation(
            [*names, job.label_party.name], run, label_party=job.label_party.name, link=job.link
        )
        self._run = run
        self._noise_secret = noise_secret
        self._keys = in_process_keys(names, noise_secret) if isinstance(job.recipe.aggregation, SecureSum) else {}
        self.side = self._side()
        self._features = [party.features.to(job.device) for party in job.parties]
        self.features = [
            self._feature_program(party, x) for party, x in zip(job.parties, self._features, strict=True)
        ]
        self.label = self._label_program(at_rest, on_round)

    @property
    def programs(self) -> list[FeatureProgram | LabelProgram]:
        return [*self.features, self.label]

    def run(self) -> None:
        """Runs to the end, to the target, or until Ctrl-C has stopped every party after the same round."""
        programs = {program.seat.me: program.run for program in self.programs}
        # Programs seed torch's generator before every forward; whoever called us keeps his.
        with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
            self.simulation.run(programs, on_interrupt=self.control.stop)

    # Building ------------------------------------------------------------------------------------------

    def _seat(self, name: PartyName) -> Seat:
        job = self.job
        return Seat(
            me=name,
            label_party=job.label_party.name,
            feature_parties=tuple(party.name for party in job.parties),
            channel=self.simulation.channel(name),
            recipe=job.recipe,
            rows=job.rows,
            seed=job.seed,
            run=self._run,
            effort=job.effort,
            storage=job.storage,
        )

    def _learner(self, name: str, module: nn.Module, spec: Any) -> Learner:
        module.to(self.job.device).train()
        return Learner(name, module, spec or self.job.optimizer, self.job.seed, self.batches.rounds)

    def _side(self) -> LabelSide:
        party = self.job.label_party
        bottom = None
        if party.bottom is not None:
            bottom = self._learner(f"{party.name}/bottom", party.bottom, party.optimizer)
        return LabelSide(
            top=self._learner(f"{party.name}/top", party.top, party.optimizer),
            labels=party.labels.to(self.job.device),
            loss=party.loss,
            fusion=party.fusion,
            bottom=bottom,
            features=None if party.features is None else party.features.to(self.job.device),
        )

    def _feature_program(self, party: FeatureParty, features: Tensor) -> FeatureProgram:
        seat = self._seat(party.name)
        learner = self._learner(f"{party.name}/bottom", party.bottom, party.optimizer)
        sealing = self._sealing(seat)
        end: Any
        if self.job.recipe.labels is Labels.SHARED:
            end = representations.FeatureEnd(seat, learner, features, self.side, self.widths)
        else:
            end = derivatives.FeatureEnd(seat, learner, features, self.widths[party.name], sealing)
        return FeatureProgram(
            seat,
            end,
            learner,
            self.batches,
            test_features=None if party.test_features is None else party.test_features.to(self.job.device),
            eval_every=self.eval_every,
            control=self.control,
            sealing=sealing,
        )

    def _sealing(self, seat: Seat) -> Sealing | None:
        aggregation = self.job.recipe.aggregation
        if not isinstance(aggregation, SecureSum):
            return None
        sender = aggregation.open_party(seat.me, seat.feature_parties, self._keys[seat.me])
        return Sealing(seat, sender, NoiseKey(self._noise_secret))

    def _label_program(
        self, at_rest: Callable[[Evaluated], bool], on_round: Callable[[int], None] | None
    ) -> LabelProgram:
        party = self.job.label_party
        seat = self._seat(party.name)
        kind = representations if self.job.recipe.labels is Labels.SHARED else derivatives
        test = None
        if party.test_labels is not None:
            own = None if party.test_features is None else party.test_features.to(self.job.device)
            test = (party.test_labels, own)
        return LabelProgram(
            seat,
            kind.LabelEnd(seat, self.side, self.widths),
            self.side,
            self.batches,
            test=test,
            eval_every=self.eval_every,
            control=self.control,
            at_rest=at_rest,
            on_round=on_round,
        )

    # Looking, as only a simulator can ---------------------------------------------------------------------

    def training_outputs(self) -> Tensor:
        """The outputs of all training rows at the present weights, without compression."""
        top, fusion = self.side.top.module, self.side.fusion
        return torch.cat([outputs(top, fusion, h) for h in self._chunks(self._tables())])

    def _tables(self) -> list[Tensor]:
        pairs = zip(self.features, self._features, strict=True)
        tables = [embedded(program.learner.module, features) for program, features in pairs]
        if self.side.bottom is not None and self.side.features is not None:
            tables.append(embedded(self.side.bottom.module, self.side.features))
        return tables

    def _chunks(self, tables: list[Tensor]) -> list[list[Tensor]]:
        return [[table[start : start + _CHUNK] for table in tables] for start in range(0, self.job.rows, _CHUNK)]

    def squared_gradient_norm(self) -> float:
        """|gradient of the mean training loss|^2 over all parties' parameters."""
        modules = [program.learner.module for program in self.features] + [self.side.top.module]
        tables = list(self._features)
        if self.side.bottom is not None and self.side.features is not None:
            modules.insert(-1, self.side.bottom.module)
            tables.append(self.side.features)
        training = [module.training for module in modules]
        for module in modules:
            module.eval()
        for start, x in zip(range(0, self.job.rows, _CHUNK), self._chunks(tables), strict=True):
            rows = slice(start, start + _CHUNK)
            h = [module(part) for module, part in zip(modules, x, strict=False)]
            fused = fuse(self.side.fusion, [on(self.side.like(), part) for part in h])
            losses = self.side.loss(self.side.top.module(fused), self.side.labels[rows])
            if losses.requires_grad:
                (losses.sum() / self.job.rows).backward()
        total = 0.0
        for module, was in zip(modules, training, strict=True):
            module.train(was)
            for parameter in module.parameters():
                if parameter.grad is not None:
                    total += float(parameter.grad.double().square().sum())
                parameter.grad = None
        return total

    def distortion(self) -> dict[PartyName, float]:
        """|G_k - H_k|^2 over all rows under error feedback; |C(H_k) - H_k|^2 where symbols are sent directly."""
        found = {}
        for program, table in zip(self.features, self._tables(), strict=False):
            estimate = program.end.estimate()
            uplink = self.job.recipe.uplink
            if estimate is None and isinstance(uplink, Direct):
                rng = torch.Generator().manual_seed(self.job.seed)
                estimate = uplink.compressor.compress(table, rng).to_tensor()
            if estimate is not None:
                found[program.seat.me] = float((estimate - table.cpu()).double().square().sum())
        return found
