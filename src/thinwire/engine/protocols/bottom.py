"""A model with its optimiser, and a feature party's bottom model together with its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadState
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Round
from thinwire.engine.compress import Keystream
from thinwire.engine.compress.randomness import digest_tensors
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.protocols.context import add_prefix, remove_prefix, select_rows
from thinwire.engine.protocols.evaluation import HeldOut, embed_in_chunks, evaluation_mode
from thinwire.engine.streams import Rows


@dataclass(frozen=True, slots=True)
class PrivateSteps:
    """Steps from clipped gradients with noise, each of them charged before it is made."""

    dp: DPBottom
    begin: Callable[[Round, int, Tensor, str], Keystream]  # charges rows; noise for what their gradient comes from


class Learner:
    """Runs a module forward and takes its steps; without an optimiser it is not ours to train.

    Every forward starts torch's generator from (seed, name, round, step), so that dropout and the like
    do not depend on who else computes in this process, nor on where a run was resumed.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        spec: OptimizerSpec | None,
        seed: int,
        total_rounds: int,
        private: PrivateSteps | None = None,
    ) -> None:
        self.module = module
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._name = name
        self._spec = spec
        self._seed = seed
        self._total_rounds = total_rounds
        self._private = private
        self._optimizer = None if spec is None else spec.build(module.parameters())
        self._round = -1
        self._step = 0  # forwards of this round
        self._learned = 0  # updates of this round

    def begin(self, round: Round) -> None:
        """Sets the round's learning rate."""
        self._round = round
        self._step = self._learned = 0
        if self._spec is not None and self._optimizer is not None:
            lr = self._spec.lr_at(round, self._total_rounds)
            for group in self._optimizer.param_groups:
                group["lr"] = lr

    def forward(self, x: Tensor) -> Tensor:
        seed = derive_seed(self._seed, self._name, self._round, self._step)
        self._step += 1
        torch.default_generator.manual_seed(seed)
        if x.is_cuda:
            torch.cuda.manual_seed(seed)
        output: Tensor = self.module(x)
        return output

    def learn(self, rows: Tensor, features: Callable[[], Tensor], h: Tensor, derivative: Tensor) -> None:
        """One update from dL/dh of these rows, whose embeddings are h."""
        if self._private is not None:
            x = features()
            digest = digest_tensors(x, derivative, *self.trained)
            noise = self._private.begin(self._round, self._learned, rows, digest)
            self._private.dp.set_gradients(self.module, x, derivative, noise)
        elif h.requires_grad:  # a bottom model may be frozen
            h.backward(derivative)
        self._learned += 1
        self.step()

    def step(self) -> None:
        """One update with the gradients that are there, which are then gone."""
        if self._optimizer is not None:
            self._optimizer.step()
            for group in self._optimizer.param_groups:  # zero_grad does no more, and takes a third of a small step
                for parameter in group["params"]:
                    parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers and the optimiser's memory; not copies."""
        found = add_prefix("module", self.module.state_dict())
        for index, parameter in enumerate(self.module.parameters()):
            memory = {} if self._optimizer is None else self._optimizer.state.get(parameter, {})
            for key, value in memory.items():
                if value is not None:
                    found[f"optimizer.{index}.{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            self.module.load_state_dict(remove_prefix("module", tensors))
        except RuntimeError as error:
            raise BadState(f"{self._name}: the saved model does not fit: {error}") from None
        self.remember(tensors)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Those of another round; the optimiser's memory stays."""
        self.module.load_state_dict(weights)

    def remember(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over an optimiser's memory, as `tensors` gave it."""
        if self._optimizer is None:
            return
        for index, parameter in enumerate(self.module.parameters()):
            saved = remove_prefix(f"optimizer.{index}", tensors)
            memory: dict[str, Any] = self._optimizer.state[parameter]
            for key, value in saved.items():
                memory[key] = value.clone() if key == "step" else value.to(parameter.device, copy=True)


class FrozenLearner(Learner):
    """Embeds as in evaluation and never learns; the module itself is left as it was."""

    def __init__(self, name: str, module: nn.Module, seed: int, total_rounds: int) -> None:
        super().__init__(name, module, None, seed, total_rounds)
        self.trained = []

    def forward(self, x: Tensor) -> Tensor:
        with evaluation_mode(self.module):
            return super().forward(x)


class Bottom(ABC):
    """Embeds rows and learns from what comes back; in this process alone, or together with others."""

    def __init__(self, learner: Learner, device: torch.device) -> None:
        self.device = device
        self.trained = learner.trained
        self._learner = learner

    @property
    def module(self) -> nn.Module:
        return self._learner.module

    def begin(self, round: Round) -> None:
        """Sets the round's learning rate."""
        self._learner.begin(round)

    @abstractmethod
    def embed(self, round: Round, rows: Rows) -> Tensor:
        """The embedding of a round's rows, to learn from; [B, E]."""

    @abstractmethod
    def embed_all(self) -> Tensor:
        """Of all training rows, in order; nothing is learned from it."""

    @abstractmethod
    def embed_held_out(self, rows: HeldOut) -> Tensor | None:
        """Of all validation or test rows, in evaluation mode; None where there are none."""

    @abstractmethod
    def learn(self, rows: Rows, h: Tensor, derivative: Tensor) -> None:
        """One update from dL/dh of these rows; `h` is the embedding that was made last."""

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers and the optimiser's memory; not copies."""
        return self._learner.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._learner.load(tensors)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Those of another round; the optimiser's memory stays."""
        self._learner.load_weights(weights)


class OwnBottom(Bottom):
    """In this process alone."""

    def __init__(self, learner: Learner, features: Tensor, held_out: Mapping[HeldOut, Tensor] | None = None) -> None:
        super().__init__(learner, features.device)
        self._features = features
        self._held_out = held_out or {}

    def embed(self, round: Round, rows: Rows) -> Tensor:
        return self._learner.forward(select_rows(self._features, rows))

    def embed_all(self) -> Tensor:
        with torch.no_grad():
            return self._learner.forward(self._features)

    def embed_held_out(self, rows: HeldOut) -> Tensor | None:
        table = self._held_out.get(rows)
        return None if table is None else embed_in_chunks(self.module, table)

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor) -> None:
        self._learner.learn(rows, lambda: select_rows(self._features, rows), h, derivative)
