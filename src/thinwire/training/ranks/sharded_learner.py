"""A bottom model whose weights, gradients and optimiser are shared out over the ranks of a party: torch's FSDP2.

For a model that one device cannot hold. Its tensors are whole outside, where checkpoints and models are: all ranks
have to ask for them, and to load them, together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.protocols.bottom import Learner
from thinwire.engine.protocols.context import add_prefix, remove_prefix

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class ShardedLearner(Learner):
    """Every layer of the module is put together when it computes, and let go of afterwards."""

    def __init__(self, name: str, module: nn.Module, spec: OptimizerSpec, seed: int, total_rounds: int) -> None:
        _shard(module)
        super().__init__(name, module, spec, seed, total_rounds)  # the optimiser is over this rank's part

    def tensors(self) -> dict[str, Tensor]:
        return {name: _gather(tensor) for name, tensor in super().tensors().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(dict(tensors) | add_prefix("module", self._cut(remove_prefix("module", tensors))))

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights(self._cut(weights))

    def _cut(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This rank's part of each."""
        held = self.module.state_dict()
        return {name: _cut_like(tensor, held[name]) if name in held else tensor for name, tensor in weights.items()}

    def remember(self, tensors: Mapping[str, Tensor]) -> None:
        found = dict(tensors)
        for index, parameter in enumerate(self.module.parameters()):
            saved = remove_prefix(f"optimizer.{index}", tensors)
            parts = {key: _cut_like(value, parameter) for key, value in saved.items()}
            found |= add_prefix(f"optimizer.{index}", parts)
        super().remember(found)


def _shard(module: nn.Module) -> None:
    """Over all processes, in place."""
    from torch.distributed import get_world_size
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(module.parameters()).device.type, (get_world_size(),))
    for layer in _list_layers(module):
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _list_layers(module: nn.Module) -> Iterator[nn.Module]:
    """Parts with weights that are called one after the other."""
    for child in module.children():
        if isinstance(child, nn.Sequential):
            yield from _list_layers(child)
        elif not isinstance(child, nn.ModuleList | nn.ModuleDict) and next(child.parameters(), None) is not None:
            yield child


def _as_shared(tensor: Tensor) -> DTensor | None:
    from torch.distributed.tensor import DTensor

    return tensor if isinstance(tensor, DTensor) else None


def _gather(tensor: Tensor) -> Tensor:
    shared = _as_shared(tensor.detach())
    return tensor if shared is None else shared.full_tensor().cpu()


def _cut_like(whole: Tensor, held: Tensor) -> Tensor:
    """The part of a whole tensor that this rank holds of `held`; itself where it is of another shape."""
    from torch.distributed.tensor import distribute_tensor

    shared = _as_shared(held.detach())
    if shared is None or whole.shape != held.shape:
        return whole
    moved = whole.to(shared.device)
    return distribute_tensor(moved, shared.device_mesh, shared.placements, src_data_rank=None)
