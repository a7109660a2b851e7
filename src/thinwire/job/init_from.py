"""Beginning from an earlier run: which weights are taken over, which are fresh, and what that means.

Rows may have come or gone, and parties too; so surrogates and worksets, which are of single rows, always begin anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName
from thinwire.data.prepare import Preparation
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.privacy.dp_bottom import DPBottom, Training
from thinwire.engine.recipe import Recipe
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.layout import metadata_file
from thinwire.storage.run_facts import EarlierRun

TOP = "top"


@dataclass(frozen=True)
class InheritedWeights:
    """What came from an earlier run, for people and for the record."""

    run: str
    digest: str  # of its models
    taken: tuple[str, ...]
    fresh: tuple[str, ...]
    retired: tuple[PartyName, ...]
    notes: tuple[str, ...] = ()
    memories: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, repr=False)  # of optimisers, by model

    def describe(self) -> list[str]:
        """In a few lines."""
        lines = [f"started from {self.run}: the weights of {', '.join(self.taken) or 'nobody'} are reused"]
        if self.fresh:
            lines.append(f"fresh: {', '.join(self.fresh)}")
        if self.retired:
            lines.append(f"removed: {', '.join(self.retired)}")
        memory = f"with the optimizer state of {', '.join(self.memories)}" if self.memories else "optimisers too"
        return [*lines, *self.notes, f"surrogates and worksets start empty, because rows may have changed; {memory}"]

    def to_record(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "run": self.run,
            "models": self.digest,
            "taken": list(self.taken),
            "fresh": list(self.fresh),
            "retired": list(self.retired),
            "optimizers": list(self.memories),
        }


@dataclass(frozen=True)
class InitFrom:
    """An earlier run to begin from. `fresh` names models that are not taken over, which may be "top"."""

    folder: Path
    fresh: Sequence[str] = ()
    optimizers: bool = False

    def require_no_guarantee(self, recipe: Recipe, training: Training) -> None:
        """What rows have lost in the earlier run would have to be added to what they lose in this one."""
        if recipe.is_noisy or isinstance(training, DPBottom):
            raise BadInput(
                f"{self.folder}: a run with a privacy guarantee must start from fresh weights: what its rows have "
                "already lost is recorded in the earlier run's ledger and would not be counted in this one"
            )

    def take_over(
        self,
        modules: Mapping[str, nn.Module],
        widths: Mapping[PartyName, int],
        fusion: str | None,
        prepared: Mapping[PartyName, Any] = MappingProxyType({}),
    ) -> InheritedWeights:
        """Changes the modules in place; refuses weights that do not fit, before any is changed.

        `modules` are those of this process by name, the top model as "top"; `widths` those of all parties with
        features, in the order of fusion; `prepared` says how the tables of some of them became numbers.
        """
        earlier = EarlierRun(self.folder)
        self._require_known(modules)
        fitting, notes = {}, []
        for name, module in modules.items():
            if name in self.fresh or name not in earlier.models:
                continue
            fitted = _Fitted(name, earlier, module, widths, fusion)
            fitted.require_same_columns(prepared.get(name))
            fitting[name] = fitted.tensors()
            notes += fitted.notes
        if not fitting:
            raise BadInput(
                f"{self.folder} has nothing to reuse: it holds models of {', '.join(earlier.models) or 'nobody'}, "
                f"but this job has {', '.join(modules)}"
            )
        for name, tensors in fitting.items():
            modules[name].load_state_dict(tensors)
        here, known = {*widths, *modules}, earlier.parties()
        joined = [name for name in widths if name not in known]
        if joined and fusion in ("sum", "mean"):
            notes.append(
                f"the embeddings of {', '.join(joined)} join the {fusion} with fresh weights, so the loss "
                "may rise at first"
            )
        return InheritedWeights(
            run=str(self.folder),
            digest=earlier.digest(),
            taken=tuple(fitting),
            fresh=tuple(name for name in modules if name not in fitting),
            retired=tuple(name for name in known if name not in here),
            notes=tuple(notes),
            memories=self._memories(earlier, modules, fitting),
        )

    def _require_known(self, modules: Collection[str]) -> None:
        for name in self.fresh:
            if name not in modules:
                hint = did_you_mean(name, modules)
                raise BadInput(f"--fresh {name}: there is no such model; the models are {', '.join(modules)}{hint}")

    def _memories(
        self, earlier: EarlierRun, modules: Mapping[str, nn.Module], fitting: Mapping[str, Mapping[str, Tensor]]
    ) -> dict[str, dict[str, Tensor]]:
        """Of those models whose tensors are as they were, in shape and in the order of their columns."""
        if not self.optimizers:
            return {}
        same = {
            name
            for name, tensors in fitting.items()
            if all(tensor is earlier.models[name][key] for key, tensor in tensors.items())
        }
        found = {name: memory for name, memory in earlier.optimizers.items() if name in same}
        for name, memory in found.items():
            parameters = list(modules[name].parameters())
            for key, tensor in memory.items():
                index = int(key.split(".")[1])
                if index >= len(parameters) or (tensor.dim() and tensor.shape != parameters[index].shape):
                    raise BadInput(f"{self.folder}: the optimizer state of {name!r} does not match its model")
        return found


@dataclass(frozen=True)
class _Fitted:
    """One model's earlier weights, made to fit where parties have come or gone under concat."""

    name: str
    earlier: EarlierRun
    module: nn.Module
    widths: Mapping[PartyName, int]
    fusion: str | None
    notes: list[str] = field(default_factory=list)

    def tensors(self) -> dict[str, Tensor]:
        before, now = self.before, self.module.state_dict()
        if before.keys() != now.keys():
            odd = sorted(before.keys() ^ now.keys())[0]
            raise self._unfit(f"only one of them has {odd!r}")
        if list(self.places.items()) != list(self.widths.items()):
            return self._move(now)
        self._require_shapes(before, now)
        return dict(before)

    def require_same_columns(self, prepared: Preparation | None) -> None:
        """Of trees: their thresholds and categories mean nothing in columns that were prepared otherwise."""
        kept = metadata_file(self.earlier.folder, self.name, "preparation")
        if not isinstance(self.module, BoostedTrees) or (prepared is None and not kept.exists()):
            return
        if prepared is None or not kept.exists():
            raise self._unfit(f"its table is prepared {'there' if prepared is None else 'here'} alone")
        before = Preparation.from_json(open_folder(self.earlier.folder).read(kept))
        if (what := prepared.find_difference(before)) is not None:
            raise self._unfit(f"{what} (prepare.types and prepare.known fix what rows decide otherwise)")

    @property
    def before(self) -> Mapping[str, Tensor]:
        return self.earlier.models[self.name]

    @cached_property
    def places(self) -> Mapping[PartyName, int]:
        """Whose columns a top model took, in order; those of this job where no order matters."""
        facts = self.earlier.facts
        if self.name != TOP:
            return self.widths
        if facts is not None and facts.fusion != self.fusion:
            raise self._unfit(f"embeddings are fused by {facts.fusion!r} there and by {self.fusion!r} here")
        if self.fusion != "concat":
            return self.widths
        if facts is None:
            raise self._unfit("the folder has no run.json, so that nothing says which columns are whose")
        return facts.widths

    def _move(self, now: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The layer that takes the embeddings: by its shape, or by trying where the shapes are as they were."""
        before, places = self.before, self.places
        wide, wide_now = sum(places.values()), sum(self.widths.values())
        for key, tensor in now.items():
            if tensor.dim() == 2 and tensor.shape[1] == wide_now and before[key].shape == (len(tensor), wide):
                moved = {**before, key: self._columns(before[key])}
                if wide != wide_now or self._says_the_same(moved):
                    self._require_shapes(moved, now)
                    self._note()
                    return moved
        self._require_shapes(before, now)
        raise self._unfit(
            f"concat joins {', '.join(places)} there and {', '.join(self.widths)} here, and which columns are whose "
            "is not clear"
        )

    def _columns(self, before: Tensor) -> Tensor:
        """Each party's columns where they belong now; those of a new one are 0: it changes nothing at first."""
        parts = dict(zip(self.places, before.split(list(self.places.values()), dim=1), strict=True))
        new = {party: before.new_zeros(len(before), width) for party, width in self.widths.items()}
        return torch.cat([parts[party] if self._stays(party) else new[party] for party in new], dim=1)

    def _says_the_same(self, moved: Mapping[str, Tensor]) -> bool:
        """For embeddings in which those who left are 0, and those who came anything."""
        rng, top = torch.Generator().manual_seed(0), deepcopy(self.module).cpu().double().eval()
        new = {party: torch.randn(8, w, generator=rng, dtype=torch.float64) for party, w in self.widths.items()}
        old = [new[p] if self._stays(p) else torch.zeros(8, w).double() for p, w in self.places.items()]
        with torch.no_grad():
            said = functional_call(top, _in_float64(self.before), torch.cat(old, dim=1))
            says = functional_call(top, _in_float64(moved), torch.cat(list(new.values()), dim=1))
        return bool(torch.allclose(said, says, atol=1e-6))

    def _stays(self, party: PartyName) -> bool:
        return party in self.places and self.widths.get(party) == self.places[party]

    def _note(self) -> None:
        stay = [party for party in self.widths if self._stays(party)]
        if stay != [party for party in self.places if party in stay]:
            self.notes.append(f"the top model's columns follow the parties' new order: {', '.join(stay)}")
        for party in self.widths:
            if party not in stay:
                self.notes.append(f"the top model's columns for {party!r} start at 0, so it changes nothing at first")
        gone = [party for party in self.places if party not in stay]
        if gone:
            self.notes.append(f"the top model's columns for {', '.join(gone)} are dropped")

    def _require_shapes(self, before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
        if isinstance(self.module, BoostedTrees):  # of any number: this job adds more
            outputs = int(before["output"].max()) + 1 if before["output"].numel() else 0
            if outputs > self.module.width:
                raise self._unfit(f"its trees have {outputs} outputs there and {self.module.width} here")
            return
        for key, tensor in now.items():
            if before[key].shape != tensor.shape:
                raise self._unfit(f"{key} has shape {list(before[key].shape)} there and {list(tensor.shape)} here")

    def _unfit(self, why: str) -> BadInput:
        return BadInput(
            f"the model {self.name!r} in {self.earlier.folder} does not match this job's: {why}. Use the same model "
            f"as before, or reinitialise it: --fresh {self.name}"
        )


def _in_float64(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor.double() if tensor.is_floating_point() else tensor for key, tensor in tensors.items()}
