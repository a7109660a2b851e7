"""A model with its optimiser, and a feature party's bottom model together with its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadState
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Round
from thinwire.engine.compress import Keystream
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.protocols.context import add_prefix, remove_prefix, select_rows
from thinwire.engine.protocols.evaluation import embed_in_chunks
from thinwire.engine.streams import Rows


class OptimizerBuilder(Protocol):
    """What `engine/models/optimizers.py` has: a frozen description of an optimiser."""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None: ...

    def lr_at(self, round: Round, total_rounds: int) -> float: ...


class NoOptimizer:
    """The optimiser of a model that is not ours to train."""

    def build(self, parameters: Iterable[nn.Parameter]) -> None:
        return None

    def lr_at(self, round: Round, total_rounds: int) -> float:
        return 0.0


class Learner:
    """Runs a module forward and takes its steps.

    Every forward starts torch's generator from (seed, name, round, step), so that dropout and the like
    do not depend on who else computes in this process, nor on where a run was resumed.
    """

    def __init__(self, name: str, module: nn.Module, spec: OptimizerBuilder, seed: int, total_rounds: int) -> None:
        self.module = module
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._name = name
        self._spec = spec
        self._seed = seed
        self._total_rounds = total_rounds
        self._optimizer = spec.build(module.parameters())
        self._round = -1
        self._step = 0

    def begin(self, round: Round) -> None:
        """Sets the round's step size."""
        self._round = round
        self._step = 0
        if self._optimizer is not None:
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
        if h.requires_grad:  # a bottom model may be frozen
            h.backward(derivative)
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

    def remember(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over an optimiser's memory, as `tensors` gave it."""
        if self._optimizer is None:
            return
        for index, parameter in enumerate(self.module.parameters()):
            saved = remove_prefix(f"optimizer.{index}", tensors)
            memory: dict[str, Any] = self._optimizer.state[parameter]
            for key, value in saved.items():
                memory[key] = value.clone() if key == "step" else value.to(parameter.device, copy=True)


class PrivateLearner(Learner):
    """Learns from clipped gradients with noise, and says so before each of them is made."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        spec: OptimizerBuilder,
        seed: int,
        total_rounds: int,
        *,
        dp: DPBottom,
        noise: Callable[[Round, int], Keystream],
        charge: Callable[[Round, int, Tensor], None],
    ) -> None:
        super().__init__(name, module, spec, seed, total_rounds)
        self._dp = dp
        self._noise = noise
        self._charge = charge
        self._taken = 0  # steps of this round

    def begin(self, round: Round) -> None:
        super().begin(round)
        self._taken = 0

    def learn(self, rows: Tensor, features: Callable[[], Tensor], h: Tensor, derivative: Tensor) -> None:
        self._charge(self._round, self._taken, rows)
        self._dp.set_gradients(self.module, features(), derivative, self._noise(self._round, self._taken))
        self._taken += 1
        self.step()


class Bottom(Protocol):
    """Embeds rows and learns from what comes back; in this process alone, or together with others."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def device(self) -> torch.device: ...

    def begin(self, round: Round) -> None:
        """Sets the round's step size."""

    def embed(self, round: Round, rows: Rows) -> Tensor:
        """The embedding of a round's rows, to learn from; [B, E]."""

    def embed_all(self) -> Tensor:
        """Of all training rows, in order; nothing is learned from it."""

    def embed_test(self) -> Tensor | None:
        """Of all test rows, in evaluation mode; None where there are none."""

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor) -> None:
        """One update from dL/dh of these rows; `h` is the embedding that was made last."""

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers and the optimiser's memory; not copies."""

    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


class OwnBottom:
    """In this process alone."""

    def __init__(self, learner: Learner, features: Tensor, test_features: Tensor | None = None) -> None:
        self._learner = learner
        self._features = features
        self._test_features = test_features

    @property
    def module(self) -> nn.Module:
        return self._learner.module

    @property
    def device(self) -> torch.device:
        return self._features.device

    def begin(self, round: Round) -> None:
        self._learner.begin(round)

    def embed(self, round: Round, rows: Rows) -> Tensor:
        return self._learner.forward(select_rows(self._features, rows))

    def embed_all(self) -> Tensor:
        with torch.no_grad():
            return self._learner.forward(self._features)

    def embed_test(self) -> Tensor | None:
        return None if self._test_features is None else embed_in_chunks(self.module, self._test_features)

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor) -> None:
        self._learner.learn(rows, lambda: select_rows(self._features, rows), h, derivative)

    def tensors(self) -> dict[str, Tensor]:
        return self._learner.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._learner.load(tensors)
