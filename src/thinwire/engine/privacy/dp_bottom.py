"""Private training of a bottom model: each row's gradient clipped, Gaussian noise on their sum (Abadi et al., 2016).

    g_i = B dL/dtheta of row i;   clipped to |g_i| <= c
    gradient = (sum of g_i + N(0, (s c)^2)) / B

What the model then is, and every later embedding of any row, has bounded memory of a single row: one step in
which a row takes part costs 2 alpha / s^2 of Renyi divergence (`accounting/renyi.py`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from thinwire.base.errors import BadInput
from thinwire.engine.compress.parameters import check_number
from thinwire.engine.compress.randomness import Keystream, keep_generator
from thinwire.engine.privacy.accounting.ledger import BottomModel, Frozen, PrivatelyTrained, TrainedOnRawRows
from thinwire.engine.privacy.defences import standard_normal

_ROWS = 256  # at once: a gradient a row is as large as the model
_TOLERANCE = 1e-4
_COMPANY = 16  # rows beside which one is looked at


@dataclass(frozen=True, slots=True)
class DPBottom:
    """Trains a bottom model with DP-SGD: gradients clipped per row, Gaussian noise on their sum.

    Args:
        clip: largest gradient norm of a row.
        noise_multiplier: standard deviation of the noise, in units of `clip`.

    Raises:
        BadParameter: a value is out of range.

    Examples:
        >>> tw.privacy.DPBottom(clip=1.0, noise_multiplier=1.1).clip
        1.0
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_number(self, "clip", above=0, up_to=1e30)
        check_number(self, "noise_multiplier", above=0, up_to=1e6)

    def set_gradients(self, module: nn.Module, x: Tensor, derivative: Tensor, noise: Keystream) -> None:
        """Leaves in the module's parameters the private gradient of a batch; `derivative` is of the mean loss."""
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not parameters:
            return
        rows = len(x)
        total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        for start in range(0, rows, _ROWS):
            part = slice(start, start + _ROWS)
            gradients = self._of_rows(module, parameters, x[part], rows * derivative[part])
            norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
            # A row whose gradient leaves the range of floats teaches nothing.
            finite = norms.isfinite()
            scale = torch.where(finite, (self.clip / norms.clamp(min=1e-30)).clamp(max=1.0), 0.0)
            for name, gradient in gradients.items():
                kept = torch.where(finite.reshape(-1, *[1] * (gradient.dim() - 1)), gradient, 0.0)
                total[name] += torch.einsum("i,i...->...", scale, kept)
        for name, parameter in parameters.items():
            drawn = torch.from_numpy(standard_normal(noise, tuple(parameter.shape)))
            deviation = self.noise_multiplier * self.clip
            noisy = total[name].double() + deviation * drawn.to(parameter.device)
            parameter.grad = (noisy / rows).to(parameter.dtype)

    def _of_rows(
        self, module: nn.Module, parameters: dict[str, nn.Parameter], x: Tensor, derivative: Tensor
    ) -> dict[str, Tensor]:
        """Every row's own gradient, [rows, ...] for each parameter."""
        held = {name: parameter.detach() for name, parameter in parameters.items()}

        def of_one(row: Tensor, its_derivative: Tensor) -> dict[str, Tensor]:
            backward = vjp(lambda p: functional_call(module, p, (row[None],))[0], held)[1]
            return backward(its_derivative)[0]  # type: ignore[no-any-return]

        found: dict[str, Tensor] = vmap(of_one, randomness="different")(x, derivative)
        return found


def require_separate_rows(where: str, module: nn.Module, x: Tensor) -> None:
    """Refuses a model in which rows of a batch see each other: no bound on one row's influence would hold."""
    why = find_row_coupling(module, x)
    if why is not None:
        raise BadInput(f"{where} {why}, and no privacy guarantee holds; {APART}")


APART = "compute every row independently; use LayerNorm or GroupNorm instead of BatchNorm"


def find_row_coupling(module: nn.Module, x: Tensor) -> str | None:
    """How rows of a batch see each other in this model, in words; None where they do not.

    It looks for what can be seen from outside: with other rows beside it, and other weights, a row must come out the
    same. That is a help, not a proof; a guarantee says what it rests on.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            kind = type(part).__name__
            return (
                f"normalises over the batch ({name or kind}: {kind}), so one row changes the embeddings of the others"
            )
    if len(x) < 3:
        return None
    tried = _stirred(module)
    with keep_generator(), torch.no_grad():
        alone, few = tried(x[:1])[0], x[:_COMPANY]
        seen = [tried(x[:2])[0], tried(x[[0, 2, 1]])[0], tried(few)[0], tried(few.flip(0))[-1]]
        after = [_after_training_with(module, x[[0, company]], x[:1]) for company in (1, 2)]
    for one, other in (*((alone, one) for one in seen), (after[0], after[1])):
        if not torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE):
            return "gives a row a different embedding in a different batch: its rows interact"
    return None


def _stirred(module: nn.Module) -> nn.Module:
    """With other weights, for a part that does nothing yet, and without chance."""
    tried = copy.deepcopy(module).train()
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in tried.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng).to(parameter))
    for part in tried.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    return tried


def _after_training_with(module: nn.Module, batch: Tensor, row: Tensor) -> Tensor:
    """A row's embedding in evaluation mode, after a batch in training mode: averages that run may remember it."""
    tried = _stirred(module)
    tried(batch)
    embedding: Tensor = tried.eval()(row)[0]
    return embedding


def require_row_gradients(where: str, dp: DPBottom, module: nn.Module, x: Tensor, width: int) -> None:
    """Refuses a bottom model whose gradient cannot be taken row by row, before anything is sent."""
    if any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 for part in module.modules()):
        raise BadInput(
            f"{where} has dropout: the private gradient would belong to a different dropout mask than the embedding "
            "that was sent; remove dropout, since DPBottom's noise already regularises"
        )
    tried = copy.deepcopy(module).train()
    try:
        dp.set_gradients(tried, x[:2], x.new_zeros(len(x[:2]), width), Keystream(bytes(32)))
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        raise BadInput(
            f"{where} cannot be trained by DPBottom, which takes one row's gradient at a time (torch.func.vmap): "
            f"{str(error).splitlines()[0]}"
        ) from error


Training: TypeAlias = TrainedOnRawRows | Frozen | DPBottom  # of every feature party's bottom model


def to_accounting(training: Training) -> BottomModel:
    """What the accounting has to know of it."""
    return PrivatelyTrained(training.noise_multiplier) if isinstance(training, DPBottom) else training
