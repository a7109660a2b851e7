"""Beginning from an earlier run: which weights are taken over, which are fresh, and what that means.

Rows may have come or gone, and parties too; so surrogates and worksets, which are of single rows, always begin anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName
from thinwire.engine.privacy.dp_bottom import DPBottom, Training
from thinwire.engine.recipe import Recipe
from thinwire.job.checks import is_noisy
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
        lines = [f"begun from {self.run}: the weights of {', '.join(self.taken) or 'nobody'} are taken over"]
        if self.fresh:
            lines.append(f"fresh: {', '.join(self.fresh)}")
        if self.retired:
            lines.append(f"no longer there: {', '.join(self.retired)}")
        memory = f"with the optimisers' memory of {', '.join(self.memories)}" if self.memories else "optimisers too"
        return [*lines, *self.notes, f"surrogates and worksets begin anew, since rows may have moved; {memory}"]

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
        if is_noisy(recipe) or isinstance(training, DPBottom):
            raise BadInput(
                f"{self.folder}: a run with a privacy guarantee begins from fresh weights. What its rows have lost "
                "before is in the earlier run's ledger, and would not be counted in this one's"
            )

    def take_over(
        self, modules: Mapping[str, nn.Module], widths: Mapping[PartyName, int], fusion: str | None
    ) -> InheritedWeights:
        """Changes the modules in place; refuses weights that do not fit, before any is changed.

        `modules` are those of this process by name, the top model as "top"; `widths` those of all parties with
        features, in the order of fusion.
        """
        earlier = EarlierRun(self.folder)
        self._require_known(modules)
        fitting, notes = {}, []
        for name, module in modules.items():
            if name in self.fresh or name not in earlier.models:
                continue
            fitted = _Fitted(name, earlier, module, widths, fusion)
            fitting[name] = fitted.tensors()
            notes += fitted.notes
        if not fitting:
            raise BadInput(
                f"{self.folder} has nothing to take over: it holds models of "
                f"{', '.join(earlier.models) or 'nobody'}, this job those of {', '.join(modules)}"
            )
        for name, tensors in fitting.items():
            modules[name].load_state_dict(tensors)
        here, known = {*widths, *modules}, earlier.parties()
        joined = [name for name in widths if name not in known]
        if joined and fusion in ("sum", "mean"):
            notes.append(
                f"the embeddings of {', '.join(joined)} join the {fusion} from fresh weights: the loss may rise first"
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
                raise BadInput(f"--fresh {name}: there is no such model; there are {', '.join(modules)}{hint}")

    def _memories(
        self, earlier: EarlierRun, modules: Mapping[str, nn.Module], fitting: Mapping[str, Mapping[str, Tensor]]
    ) -> dict[str, dict[str, Tensor]]:
        """Of those models whose shapes are as they were."""
        if not self.optimizers:
            return {}
        same = {
            name
            for name, tensors in fitting.items()
            if {key: t.shape for key, t in tensors.items()} == {k: t.shape for k, t in earlier.models[name].items()}
        }
        found = {name: memory for name, memory in earlier.optimizers.items() if name in same}
        for name, memory in found.items():
            parameters = list(modules[name].parameters())
            for key, tensor in memory.items():
                index = int(key.split(".")[1])
                if index >= len(parameters) or (tensor.dim() and tensor.shape != parameters[index].shape):
                    raise BadInput(f"{self.folder}: the optimiser's memory of {name!r} does not fit its model")
        return found


class _Fitted:
    """One model's earlier weights, made to fit where parties have come or gone under concat."""

    def __init__(
        self,
        name: str,
        earlier: EarlierRun,
        module: nn.Module,
        widths: Mapping[PartyName, int],
        fusion: str | None,
    ) -> None:
        self.notes: list[str] = []
        self._name = name
        self._earlier = earlier
        self._module = module
        self._widths = widths
        self._fusion = fusion

    def tensors(self) -> dict[str, Tensor]:
        before, now = self._earlier.models[self._name], self._module.state_dict()
        if before.keys() != now.keys():
            odd = sorted(before.keys() ^ now.keys())[0]
            raise self._unfit(f"{odd!r} is in one of them only")
        return {key: self._fitted(key, before[key], tensor) for key, tensor in now.items()}

    def _fitted(self, key: str, before: Tensor, now: Tensor) -> Tensor:
        if before.shape == now.shape:
            return before
        facts = self._earlier.facts
        wide = sum(self._widths.values())
        if self._name == TOP and self._fusion == "concat" and facts is not None and facts.fusion == "concat":
            lengthwise = before.dim() == now.dim() == 2 and before.shape[0] == now.shape[0]
            if lengthwise and before.shape[1] == sum(facts.widths.values()) and now.shape[1] == wide:
                return self._columns(before, now, facts.widths)
        raise self._unfit(f"{key} has shape {list(before.shape)} there and {list(now.shape)} here")

    def _columns(self, before: Tensor, now: Tensor, widths: Mapping[PartyName, int]) -> Tensor:
        """Each party's columns where they belong now; those of a new one are 0: it changes nothing at first."""
        found = torch.zeros_like(now, device="cpu")
        starts, place = {}, 0
        for party, width in widths.items():
            starts[party] = place
            place += width
        place = 0
        for party, width in self._widths.items():
            if widths.get(party) == width:
                found[:, place : place + width] = before[:, starts[party] : starts[party] + width]
            else:
                self.notes.append(f"the top model's columns for {party!r} begin at 0: it changes nothing at first")
            place += width
        gone = [party for party in widths if party not in self._widths]
        if gone:
            self.notes.append(f"the top model's columns for {', '.join(gone)} are dropped")
        return found

    def _unfit(self, why: str) -> BadInput:
        return BadInput(
            f"the model {self._name!r} in {self._earlier.folder} does not fit this job's: {why}. Give the model as "
            f"it was, or begin it anew: --fresh {self._name}"
        )
