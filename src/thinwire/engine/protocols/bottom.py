"""A model with its optimiser, and a feature party's bottom model together with its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from thinwire.base.errors import BadState
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Round
from thinwire.engine.compress import Keystream
from thinwire.engine.compress.randomness import digest_tensors
from thinwire.engine.models.encoders import Encoder
from thinwire.engine.models.learners import BoostedTrees, TreeFitter
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.models.pretraining import Pretraining
from thinwire.engine.models.regression import DirectionSearch, Linear, derive_curvature
from thinwire.engine.models.scorecard import Scorecard
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.protocols.context import add_prefix, remove_prefix, select_rows
from thinwire.engine.protocols.evaluation import HeldOut, embed_in_chunks, evaluation_mode
from thinwire.engine.streams import Rows


@dataclass(frozen=True, slots=True)
class PrivateSteps:
    """Steps from clipped gradients with noise, each of them charged before it is made."""

    dp: DPBottom
    begin: Callable[[Round, int, Tensor, str], Keystream]  # charges rows; noise for what their gradient comes from


_run_engine = getattr(torch.autograd.graph, "_engine_run_backward", None)


def run_backward(h: Tensor, derivative: Tensor) -> None:
    """h.backward(derivative) without its look at symbolic shapes, which imports sympy: most of a second."""
    if _run_engine is None or derivative.shape != h.shape:
        h.backward(derivative)
    else:
        _run_engine((h,), (derivative,), False, False, (), allow_unreachable=True, accumulate_grad=True)


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
        self.network: nn.Module = module  # what computes: a wrapper of the module, where several processes train it
        self.averaging = spec is not None and spec.averaging
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
        output: Tensor = self.network(x)
        return output

    def learn(self, rows: Tensor, features: Callable[[], Tensor], h: Tensor, derivative: Tensor) -> None:
        """One update from dL/dh of these rows, whose embeddings are h."""
        if self._private is not None:
            x = features()
            digest = digest_tensors(x, derivative, *self.trained)
            noise = self._private.begin(self._round, self._learned, rows, digest)
            self._private.dp.set_gradients(self.module, x, derivative, noise)
        elif h.requires_grad:  # a bottom model may be frozen
            run_backward(h, derivative)
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
        """Parameters, buffers and the optimizer's state; not copies."""
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
            raise BadState(f"{self._name}: the saved model does not match: {error}") from None
        self.remember(tensors)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Those of another round; the optimizer's state stays."""
        self.module.load_state_dict(weights)

    def remember(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over an optimizer's state, as `tensors` gave it."""
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
    """Embeds its rows and learns from what comes back; a network, or anything else that can follow a derivative.

    Protocols know no more of a bottom model than this. `module` scores rows once they are learned from.
    """

    device: torch.device
    trained: Sequence[nn.Parameter]  # none where nothing is learned by back-propagation
    averaging: bool = False  # is it evaluated and delivered with averaged weights?

    @property
    @abstractmethod
    def module(self) -> nn.Module: ...

    def prepare(self) -> None:  # noqa: B027
        """Before the first round of a run: learns what its own rows teach without labels."""

    @abstractmethod
    def begin(self, round: Round) -> None:
        """Before a round: sets its learning rate."""

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
    def learn(self, rows: Rows, h: Tensor, derivative: Tensor, curvature: Tensor | None = None) -> None:
        """One update from dL/dh of these rows, and d2L/dh2 where it is known; `h` is the embedding made last."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs; not copies."""

    @abstractmethod
    def load(self, tensors: Mapping[str, Tensor]) -> None: ...

    @abstractmethod
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """The module's, of another round; an optimizer's state stays."""


class TreesBottom(Bottom):
    """Boosted trees: the embedding is the sum of their outputs, and a derivative is answered by new trees.

    All `parties` answer the same derivative: where their steps together could go past the optimum, each is shortened.
    Outputs that are multiplied with other parties' begin at random trees, by `seed`: from 0 no derivative leads away.
    """

    def __init__(
        self,
        trees: BoostedTrees,
        features: Tensor,
        held_out: Mapping[HeldOut, Tensor],
        parties: int = 1,
        seed: int = 0,
    ) -> None:
        self._crowd = np.float32(max(1.0, parties * (1 - (1 - trees.shrinkage) ** trees.trees)))
        self.device = features.device
        self.trained = ()
        self._trees = trees
        self._features = features
        self._held_out = held_out
        self._seed = seed
        self._fitter: TreeFitter | None = None  # made in the thread that fits: LightGBM logs by thread
        self._outputs: NDArray[np.float64] | None = None  # of all training rows, while no other trees are loaded

    @property
    def module(self) -> nn.Module:
        return self._trees

    def begin(self, round: Round) -> None:
        """There is no learning rate to set."""

    def embed(self, round: Round, rows: Rows) -> Tensor:
        return select_rows(self.embed_all(), rows)

    def embed_all(self) -> Tensor:
        if self._outputs is None:
            self._outputs = self._trees.evaluate(self._features.cpu().double().numpy())
        return torch.from_numpy(self._outputs.astype(np.float32)).to(self.device)

    def embed_held_out(self, rows: HeldOut) -> Tensor | None:
        table = self._held_out.get(rows)
        return None if table is None else embed_in_chunks(self._trees, table)

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor, curvature: Tensor | None = None) -> None:
        """Of all rows at once: dL/dh is of their mean, the trees want each row's own."""
        self._fitter = self._fitter or TreeFitter(self._trees, self._features)
        gradient = derivative.detach().cpu().float().numpy() * np.float32(len(rows))
        if curvature is None:
            bends = self._trees.find_curvature(gradient)
        else:
            bends = curvature.detach().cpu().float().numpy() * np.float32(len(rows))
        self._trees.begin_products(gradient, bends, self._seed)
        nodes, outputs = self._fitter.fit(gradient, bends if self._crowd == 1 else self._crowd * bends)
        self._trees.add(nodes)
        if self._outputs is not None:
            self._outputs += outputs

    def tensors(self) -> dict[str, Tensor]:
        return add_prefix("module", self._trees.state_dict())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.load_weights(remove_prefix("module", tensors))

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._trees.load_state_dict(weights)
        self._outputs = None


class FrozenTrees(TreesBottom):
    """Boosted trees that stay as they are."""

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor, curvature: Tensor | None = None) -> None:
        """Nothing is added."""


class NetworkBottom(Bottom):
    """A network that learns by back-propagation; in this process alone, or together with others."""

    def __init__(self, learner: Learner, device: torch.device) -> None:
        self.device = device
        self.trained = learner.trained
        self.averaging = learner.averaging
        self._learner = learner

    @property
    def module(self) -> nn.Module:
        return self._learner.module

    def begin(self, round: Round) -> None:
        self._learner.begin(round)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers and the optimizer's state; not copies."""
        return self._learner.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._learner.load(tensors)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._learner.load_weights(weights)


@dataclass(frozen=True)
class OwnRows:
    """What a party's model may learn from without labels: all its rows that nobody is judged by."""

    features: Tensor
    seed: int
    pretraining: Pretraining | None = None  # of a network


class OwnBottom(NetworkBottom):
    """In this process alone."""

    def __init__(
        self,
        learner: Learner,
        features: Tensor,
        held_out: Mapping[HeldOut, Tensor] | None = None,
        own_rows: OwnRows | None = None,
    ) -> None:
        super().__init__(learner, features.device)
        self._features = features
        self._held_out = held_out or {}
        self._own_rows = own_rows

    def prepare(self) -> None:
        own = self._own_rows
        if own is not None and own.pretraining is not None:
            own.pretraining.run(self.module, own.features, own.seed)

    def embed(self, round: Round, rows: Rows) -> Tensor:
        return self._learner.forward(select_rows(self._features, rows))

    def embed_all(self) -> Tensor:
        with torch.no_grad():
            return self._learner.forward(self._features)

    def embed_held_out(self, rows: HeldOut) -> Tensor | None:
        table = self._held_out.get(rows)
        return None if table is None else embed_in_chunks(self.module, table)

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor, curvature: Tensor | None = None) -> None:
        self._learner.learn(rows, lambda: select_rows(self._features, rows), h, derivative)


class EncoderBottom(OwnBottom):
    """Fitted to its own rows before the first of them is embedded; a derivative changes nothing."""

    def __init__(
        self, learner: FrozenLearner, features: Tensor, held_out: Mapping[HeldOut, Tensor], own_rows: OwnRows
    ) -> None:
        """The learner's module is an `Encoder`."""
        super().__init__(learner, features, held_out)
        self._encoder = cast(Encoder, learner.module)
        self._fitted_to = own_rows

    def prepare(self) -> None:
        if not self._encoder.fitted:
            self._encoder.fit(self._fitted_to.features, self._fitted_to.seed)


class RegressionBottom(OwnBottom):
    """Coefficients: an embedding is a direction of the columns, and a derivative is answered by the next one."""

    def __init__(self, learner: Learner, features: Tensor, held_out: Mapping[HeldOut, Tensor] | None = None) -> None:
        """The learner's module is `Linear`; it has no optimiser."""
        super().__init__(learner, features, held_out)
        self.linear = cast(Linear, learner.module)
        self.search = self._begin_search()

    def _begin_search(self) -> DirectionSearch:
        return DirectionSearch(self._features, self.linear.l2)

    def embed(self, round: Round, rows: Rows) -> Tensor:
        return self.search.embed_next()

    def combine(self, weights: Tensor) -> None:
        """How much each of the directions so far counts."""
        self.linear.coefficients.copy_(self.search.to_coefficients(self.search.found @ weights.to(self.device)))

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor, curvature: Tensor | None = None) -> None:
        """Of all rows at once: dL/dh is of their mean, the direction wants each row's own."""
        slope = derivative.detach()[:, 0].double() * len(rows)
        bends = derive_curvature(slope) if curvature is None else curvature.detach()[:, 0].double() * len(rows)
        self.search.find_next(slope, bends)

    def list_unsent(self) -> list[Tensor]:
        """The directions that are left of its columns; those that were sent come before them."""
        sent = self.search.found.shape[1] - self.search.is_new
        return list(self.search.complete().T[sent:])

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"found": self.search.found, "is_new": torch.tensor(self.search.is_new)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        self.search.restore(tensors["found"], bool(tensors["is_new"]))


class ScorecardBottom(RegressionBottom):
    """The first derivative, of an intercept alone, tells the weight of evidence; then directions of these columns."""

    def __init__(self, learner: Learner, features: Tensor, held_out: Mapping[HeldOut, Tensor] | None = None) -> None:
        """The learner's module is `Scorecard`; bins that it has from an earlier run are found anew."""
        self._card = cast(Scorecard, learner.module)
        self._is_binned = False
        super().__init__(learner, features, held_out)

    def _begin_search(self) -> DirectionSearch:
        """Nothing is found yet; before there are bins, all columns are 0."""
        nothing = self._features.new_zeros(1).expand(len(self._features), self._card.in_features)
        search = DirectionSearch(
            self._card.encode_kept(self._features) if self._is_binned else nothing, self._card.l2
        )
        search.restore(search.found[:, :0], False)
        return search

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor, curvature: Tensor | None = None) -> None:
        if not self._is_binned:
            self._card.fit(self._features, derivative.detach()[:, 0].double() * len(rows))
            self._is_binned = True
            self.search = self._begin_search()
        super().learn(rows, h, derivative, curvature)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"is_binned": torch.tensor(self._is_binned)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._learner.load(tensors)
        self._is_binned = bool(tensors["is_binned"])
        self.search = self._begin_search()
        super().load(tensors)
