"""The papers' algorithms as plain loops from their pseudo-code: torch alone, one process, no code of ours.

Randomness is an argument: a compressor is a function of the party, the iteration and the values, and whoever compares
gives it the draws of the run it compares with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import cos, radians, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, cross_entropy

TOP = -1  # the server's number among the parties: x_0, theta_0
Compress = Callable[[int, int, Tensor], Tensor]  # (k, t, v) -> C(v)


@dataclass
class Network:
    """Bottom models f_k, a top model, every party's features, labels, the batches and one learning rate."""

    bottoms: list[nn.Module]
    top: nn.Module
    x: list[Tensor]
    y: Tensor
    batches: list[Tensor]
    lr: float
    fusion: str = "sum"

    def embed(self, k: int, rows: Tensor | None = None) -> Tensor:
        h: Tensor = self.bottoms[k](self.x[k] if rows is None else self.x[k][rows])
        return h

    def losses(self, h: list[Tensor], rows: Tensor, top: Tensor | None = None) -> Tensor:
        """One a row; `top`, where given, are the parameters of the top model in one line."""
        outputs = self.top(self._fuse(h)) if top is None else functional_call(self.top, self._cut(top), self._fuse(h))
        return cross_entropy(outputs, self.y[rows], reduction="none")

    def _fuse(self, h: list[Tensor]) -> Tensor:
        if self.fusion == "concat":
            return torch.cat(h, dim=1)
        total = h[0]
        for part in h[1:]:
            total = total + part
        return total / len(h) if self.fusion == "mean" else total

    def top_parameters(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.top.parameters()])

    def _cut(self, line: Tensor) -> dict[str, Tensor]:
        sizes = [p.numel() for p in self.top.parameters()]
        parts = zip(self.top.named_parameters(), line.split(sizes), strict=True)
        return {name: part.reshape(p.shape) for (name, p), part in parts}

    def step(self, module: nn.Module, gradients: Any) -> None:
        with torch.no_grad():
            for p, gradient in zip(module.parameters(), gradients, strict=True):
                p.add_(gradient, alpha=-self.lr)

    def parties(self) -> range:
        return range(len(self.bottoms))

    def modules(self) -> dict[str, nn.Module]:
        return {**{f"p{k}": f for k, f in enumerate(self.bottoms)}, "top": self.top}


# Compressors -------------------------------------------------------------------------------------------------------


def top_k(fraction: float) -> Compress:
    """EF-VFL, section 5: the k entries of the message that are largest in absolute value."""

    def compress(k: int, t: int, v: Tensor) -> Tensor:
        flat = v.reshape(-1)
        kept = flat.abs().topk(max(1, int(fraction * flat.numel()))).indices
        return torch.zeros_like(flat).index_copy(0, kept, flat[kept]).reshape(v.shape)

    return compress


def top_k_of_rows(fraction: float) -> Compress:
    """C-VFL, Table 1: the k entries of each embedding that are largest in absolute value."""

    def compress(k: int, t: int, v: Tensor) -> Tensor:
        kept = v.abs().topk(max(1, int(fraction * v.shape[1])), dim=1).indices
        return torch.zeros_like(v).scatter(1, kept, v.gather(1, kept))

    return compress


def qsgd(levels: int, uniform: Callable[[int, int, int], Tensor]) -> Compress:
    """EF-VFL, section 5: |v| sign(v) / (s tau) * floor(s |v| / |v| + xi), tau = 1 + min(d / s^2, sqrt(d) / s)."""

    def compress(k: int, t: int, v: Tensor) -> Tensor:
        d = v.numel()
        tau = 1 + min(d / levels**2, sqrt(d) / levels)
        norm = v.double().norm()
        xi = uniform(k, t, d).reshape(v.shape)
        whole = (levels * v.double().abs() / norm + xi).floor()
        decoded: Tensor = norm * v.sign() / (levels * tau) * whole
        return decoded.float()

    return compress


def bins(bits: int) -> Compress:
    """C-VFL's scalar quantiser without dither: 2^b bins between the extremes, each value its bin's middle."""

    def compress(k: int, t: int, v: Tensor) -> Tensor:
        low, high = v.min().double(), v.max().double()
        width = (high - low) / 2**bits
        place = ((v.double() - low) / width).floor().clamp(max=2**bits - 1)
        middles: Tensor = low + (place + 0.5) * width
        return middles.float()

    return compress


def identity(k: int, t: int, v: Tensor) -> Tensor:
    return v


# Split learning, and C-VFL -----------------------------------------------------------------------------------------


def train_svfl(net: Network) -> None:
    """Gradient descent on the whole network."""
    for rows in net.batches:
        everything = [p for module in [*net.bottoms, net.top] for p in module.parameters()]
        loss = net.losses([net.embed(k, rows) for k in net.parties()], rows).mean()
        gradients = iter(torch.autograd.grad(loss, everything))
        for module in [*net.bottoms, net.top]:
            net.step(module, [next(gradients) for _ in module.parameters()])


def train_cvfl(net: Network, compress: Compress, local_steps: int = 1, compress_top: Compress = identity) -> None:
    """C-VFL, Algorithm 1."""
    for t0, rows in enumerate(net.batches):
        with torch.no_grad():
            sent = [compress(k, t0, net.embed(k, rows)) for k in net.parties()]  # line 6
        top = compress_top(TOP, t0, net.top_parameters()[None])[0]  # line 8
        for _ in range(local_steps):
            _descend(net, sent, top, rows)  # lines 11 to 14


def train_cvfl_by_columns(net: Network, fraction: float, local_steps: int) -> None:
    """C-VFL's top-k as its code has it: whole columns by the mean |dL/dh| of the round before; first by size."""
    seen: list[Tensor | None] = [None for _ in net.parties()]
    for rows in net.batches:
        with torch.no_grad():
            sent = [_keep_columns(net.embed(k, rows), seen[k], fraction) for k in net.parties()]
        top = net.top_parameters()
        for _ in range(local_steps):
            seen = list(_descend(net, sent, top, rows))


def _keep_columns(h: Tensor, derivative: Tensor | None, fraction: float) -> Tensor:
    weight = (h if derivative is None else derivative).abs().mean(dim=0)
    kept = weight.topk(max(1, int(fraction * h.shape[1]))).indices
    return torch.zeros_like(h).index_copy(1, kept, h[:, kept])


def _descend(net: Network, others: list[Tensor], top: Tensor, rows: Tensor) -> list[Tensor]:
    """One step of all at once: party k at its own exact embedding, the others' as received, the received top model.

    The server at the received embeddings and its own exact model. Returns dL/dh_k of every party.
    """
    found, gradients = [], []
    for k, f in enumerate(net.bottoms):
        h = net.embed(k, rows)
        loss = net.losses([h if j == k else others[j] for j in net.parties()], rows, top).mean()
        derivative, *mine = torch.autograd.grad(loss, [h, *f.parameters()])
        found.append(derivative)
        gradients.append(mine)
    server = torch.autograd.grad(net.losses(others, rows).mean(), list(net.top.parameters()))
    for f, mine in zip(net.bottoms, gradients, strict=True):
        net.step(f, mine)
    net.step(net.top, server)
    return found


def train_cvfl_private(net: Network, compress: Compress) -> None:
    """C-VFL, Algorithm 2 (Q = 1): derivatives at the received embeddings come down."""
    for t, rows in enumerate(net.batches):
        with torch.no_grad():
            sent = [compress(k, t, net.embed(k, rows)) for k in net.parties()]
        _descend_private(net, sent, rows)


def _descend_private(net: Network, received: list[Tensor], rows: Tensor) -> None:
    """One step of all at once from the derivatives at what the server has; nothing passes the compressor."""
    seen = [h.clone().requires_grad_() for h in received]
    loss = net.losses(seen, rows).mean()
    (*derivatives,) = torch.autograd.grad(loss, [*seen, *net.top.parameters()])
    for k, f in enumerate(net.bottoms):
        net.step(f, torch.autograd.grad(net.embed(k, rows), list(f.parameters()), derivatives[k]))
    net.step(net.top, derivatives[len(seen) :])


# EF-VFL ------------------------------------------------------------------------------------------------------------


@dataclass
class ErrorFeedback:
    """Surrogates G_k [N, E] of every party and G_0 of the server's model, and how they follow."""

    net: Network
    compress: Compress
    compress_top: Compress = identity  # C_0; identity: G_0 is x_0
    whole_table: bool = False  # C of all N rows' error, not of the batch's
    local_steps: int = 1
    g: list[Tensor] = field(default_factory=list)
    top: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __post_init__(self) -> None:
        with torch.no_grad():
            self.g = [torch.zeros_like(self.net.embed(k)) for k in self.net.parties()]
        self.top = torch.zeros_like(self.net.top_parameters())

    def start(self) -> None:
        """G_k^0 = C(H_k(x_k^0)) over all rows."""
        with torch.no_grad():
            self.g = [self.compress(k, 0, self.net.embed(k)) for k in self.net.parties()]

    def follow(self, t: int, rows: Tensor) -> None:
        """G_k += C(H_k - G_k), of the batch's rows or of the whole table."""
        with torch.no_grad():
            for k in self.net.parties():
                if self.whole_table:
                    self.g[k] = self.g[k] + self.compress(k, t, self.net.embed(k) - self.g[k])
                else:
                    self.g[k][rows] += self.compress(k, t, self.net.embed(k, rows) - self.g[k][rows])

    def follow_top(self, t: int) -> None:
        """G_0 += C_0(x_0 - G_0)."""
        self.top = self.top + self.compress_top(TOP, t, (self.net.top_parameters() - self.top)[None])[0]

    def update(self, rows: Tensor) -> None:
        for _ in range(self.local_steps):
            _descend(self.net, [g[rows] for g in self.g], self.top, rows)

    def update_private(self, rows: Tensor) -> None:
        _descend_private(self.net, [g[rows] for g in self.g], rows)


def train_algorithm_1(net: Network, **settings: Any) -> None:
    """EF-VFL, Algorithm 1, line by line."""
    state = ErrorFeedback(net, **settings)
    state.start()
    state.follow_top(0)
    for t, rows in enumerate(net.batches):
        state.update(rows)  # line 2
        state.follow(t + 1, rows)  # lines 3 to 5
        state.follow_top(t + 1)


def train_poster(net: Network, **settings: Any) -> None:
    """The poster: the server sends G_k[B] and x_0 to all first; clients hold their own surrogate only."""
    state = ErrorFeedback(net, **settings)
    state.start()
    for t, rows in enumerate(net.batches):
        state.follow_top(t)  # line 2
        sent = [g[rows].clone() for g in state.g]
        for _ in range(state.local_steps):
            _descend(net, sent, state.top, rows)  # line 4
        state.follow(t + 1, rows)  # lines 6 and 7


def train_algorithm_2(net: Network, **settings: Any) -> None:
    """EF-VFL, Algorithm 2, line by line; the derivative at (x_0^t, G^t) comes before the update that uses it."""
    state = ErrorFeedback(net, **settings)
    state.start()
    for t, rows in enumerate(net.batches):
        state.update_private(rows)  # lines 2 and 4
        state.follow(t + 1, rows)  # lines 3 and 5


def train_exchange_first(net: Network, warm: bool = False, **settings: Any) -> None:
    """As the authors' code: surrogates from zero; the exchange, then the update with the fresh surrogates."""
    state = ErrorFeedback(net, **settings)
    if warm:
        state.start()
    for t, rows in enumerate(net.batches):
        state.follow(t, rows)
        state.follow_top(t)
        state.update(rows)


def train_exchange_first_private(net: Network, **settings: Any) -> None:
    state = ErrorFeedback(net, **settings)
    for t, rows in enumerate(net.batches):
        state.follow(t, rows)
        state.update_private(rows)


# CELU-VFL, and FedBCD ----------------------------------------------------------------------------------------------


@dataclass
class Celu:
    """CELU-VFL as its paper has it, for any number of feature parties, with explicit tables.

    FedBCD (Algorithm 1 there) is W = 1 without weights. `pick(draw, n)` chooses one of n at random.
    """

    net: Network
    capacity: int
    reuse: int
    xi: float | None = None
    sampling: str = "round_robin"
    pick: Callable[[int, int], int] | None = None
    table: list[dict[str, Any]] = field(default_factory=list)
    draws: int = 0

    def run(self) -> None:
        for i, rows in enumerate(self.net.batches):
            self.exchange(i, rows)
            for _ in range(self.reuse - 1):
                entry = self.draw()
                if entry is None:
                    break
                self.local(entry)

    def exchange(self, i: int, rows: Tensor) -> None:
        net = self.net
        h = [net.embed(k, rows) for k in net.parties()]
        seen = [z.detach().clone().requires_grad_() for z in h]
        (*dz,) = torch.autograd.grad(net.losses(seen, rows).mean(), [*seen, *net.top.parameters()])
        for f, z, d in zip(net.bottoms, h, dz, strict=False):
            net.step(f, torch.autograd.grad(z, list(f.parameters()), d))
        net.step(net.top, dz[len(h) :])
        self.table = [e for e in self.table if e["i"] >= i - self.capacity + 1]
        stale = {"z": [z.detach() for z in h], "dz": dz[: len(h)]}
        self.table.append({"i": i, "rows": rows, "uses": 1, "drawn": None, **stale})

    def draw(self) -> dict[str, Any] | None:
        left = [e for e in self.table if e["uses"] < self.reuse]
        if self.sampling == "round_robin":
            left = [e for e in left if e["drawn"] is None or self.draws - e["drawn"] >= self.capacity]
            left.sort(key=lambda e: (-1 if e["drawn"] is None else e["drawn"], e["i"]))
        if not left:
            return None
        place = {"round_robin": 0, "consecutive": -1}.get(self.sampling)
        entry: dict[str, Any] = left[self.pick(self.draws, len(left)) if self.pick and place is None else place or 0]
        entry["drawn"] = self.draws
        entry["uses"] += 1
        self.draws += 1
        return entry

    def weigh(self, now: Tensor, then: Tensor) -> Tensor:
        """Algorithm 2 there: the cosine, 0 below cos(xi)."""
        if self.xi is None:
            return torch.ones(len(now))
        w = cosine_similarity(now, then, dim=1, eps=1e-30)
        return w * (w >= cos(radians(self.xi))).float()

    def local(self, e: dict[str, Any]) -> None:
        net, rows = self.net, e["rows"]
        for k, f in enumerate(net.bottoms):
            now = net.embed(k, rows)
            weighed = self.weigh(now.detach(), e["z"][k])[:, None] * e["dz"][k]
            net.step(f, torch.autograd.grad(now, list(f.parameters()), weighed))
        seen = [z.clone().requires_grad_() for z in e["z"]]
        losses = net.losses(seen, rows)
        if self.xi is not None:
            fresh = torch.autograd.grad(losses.mean(), seen, retain_graph=True)
            losses = self.weigh(torch.cat(fresh, dim=1), torch.cat(e["dz"], dim=1)) * losses
        net.step(net.top, torch.autograd.grad(losses.mean(), list(net.top.parameters())))


# PBM-VFL -----------------------------------------------------------------------------------------------------------


def train_pbm(
    net: Network, trials: int, beta: float, bound: float, draw: Callable[[int, int, Tensor], Tensor]
) -> None:
    """The server sees sum q_m, q_m ~ Binomial(b, 1/2 + beta h_m / C), and takes C / (beta b) (sum - b M / 2) for the
    sum of the embeddings; `draw(m, t, p)` are the counts of chances p."""
    for t, rows in enumerate(net.batches):
        h = [net.embed(m, rows) for m in net.parties()]
        counts = sum(draw(m, t, 0.5 + beta * z.detach() / bound) for m, z in enumerate(h))
        noisy = bound / (beta * trials) * (torch.as_tensor(counts) - trials * len(h) / 2)
        seen = noisy.float().requires_grad_()
        derivative, *server = torch.autograd.grad(net.losses([seen], rows).mean(), [seen, *net.top.parameters()])
        for f, z in zip(net.bottoms, h, strict=True):
            net.step(f, torch.autograd.grad(z, list(f.parameters()), derivative))
        net.step(net.top, server)
