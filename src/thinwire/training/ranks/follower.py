"""What every rank but the first does all day: what it is told."""

from __future__ import annotations

from torch import Tensor

from thinwire.base.errors import BadState
from thinwire.engine.programs.program import Batches
from thinwire.training.ranks.part import Part
from thinwire.training.ranks.ranks import Order, Ranks, Told


def follow(ranks: Ranks, part: Part, batches: Batches, width: int) -> None:
    """Blocks until rank 0 says that it is over; raises GroupBroken where rank 0 is gone."""
    follower = _Follower(ranks, part, batches, width)
    while (told := ranks.told()).order is not Order.END:
        follower.obey(told)


class _Follower:
    def __init__(self, ranks: Ranks, part: Part, batches: Batches, width: int) -> None:
        self._ranks = ranks
        self._part = part
        self._batches = batches
        self._width = width
        self._embedded = 0  # rows, last

    def obey(self, told: Told) -> None:
        match told.order:
            case Order.WEIGHTS:
                for tensor in self._part.learner.module.state_dict().values():
                    held = tensor.cpu().contiguous()
                    self._ranks.share(held)
                    tensor.copy_(held)
            case Order.BEGIN:
                self._part.learner.begin(told.round)
            case Order.EMBED:
                rows = self._batches.rows(told.round) if told.rows is None else told.rows
                self._embedded = self._sent(self._part.embed(rows))
            case Order.EMBED_ALL:
                self._sent(self._part.embed_all())
            case Order.EMBED_TEST:
                self._sent(self._part.embed_test())
            case Order.LEARN:
                self._learn()
            case _:
                raise BadState(f"rank 0 told rank {self._ranks.rank} to {told.order.name}, which does not come now")

    def _sent(self, h: Tensor | None) -> int:
        if h is None:
            return 0
        self._ranks.send(h.cpu(), 0)
        return len(h)

    def _learn(self) -> None:
        like = next(self._part.learner.module.parameters())
        derivative = like.new_empty(self._embedded, self._width).cpu()
        if self._embedded:
            self._ranks.receive(derivative, 0)
        self._ranks.add_up(self._part.gradient(derivative))
        weights = self._part.weights()
        self._ranks.share(weights)
        self._part.set_weights(weights)
