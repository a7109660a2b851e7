"""Bottom models that begin with what a party's own rows teach, before any label or partner does.

A denoising autoencoder (Vincent et al., 2008): some of a row's values are hidden, and a decoder that is thrown away
afterwards must rebuild all of them from the embedding. Nothing is sent for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.engine.compress.parameters import check_number, check_whole

_WIDER = 4  # the decoder's hidden layer, in embeddings


@dataclass(frozen=True, slots=True)
class Pretraining:
    """How a network is pre-trained on its party's own rows: it fills in values that were masked.

    Args:
        epochs: passes over the rows.
        lr: learning rate.
        batch_rows: rows per batch.
        hidden_share: fraction of each row's values that is masked.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> tw.learners.Pretraining(epochs=3).hidden_share
        0.25
    """

    epochs: int = 10
    lr: float = 0.001
    batch_rows: int = 256
    hidden_share: float = 0.25

    def __post_init__(self) -> None:
        check_whole(self, "epochs", 1, 10_000)
        check_number(self, "lr", above=0, up_to=1e3)
        check_whole(self, "batch_rows", 2, 1_000_000)
        check_number(self, "hidden_share", above=-1e-12, up_to=0.99)

    def run(self, network: nn.Module, features: Tensor, seed: int) -> float:
        """In place, on these rows [N, ...]; the mean squared error of the last epoch, in deviations."""
        targets = standardise(features.flatten(1))
        with torch.random.fork_rng(devices=[features.device] if features.is_cuda else []):
            torch.manual_seed(seed)
            network.train()
            return self._run(network, features, targets)

    def _run(self, network: nn.Module, features: Tensor, targets: Tensor) -> float:
        with torch.no_grad():
            width = network(features[:2]).shape[1]
        decoder = nn.Sequential(
            nn.Linear(width, _WIDER * width), nn.ReLU(), nn.Linear(_WIDER * width, targets.shape[1])
        ).to(features.device)
        optimizer = torch.optim.Adam([*network.parameters(), *decoder.parameters()], self.lr)
        error = 0.0
        for _ in range(self.epochs):
            error = 0.0
            for rows in torch.randperm(len(features)).to(features.device).split(self.batch_rows):
                if len(rows) < 2:  # batch normalisation needs two
                    continue
                x = features[rows]
                shown = x * (torch.rand_like(x) >= self.hidden_share)
                loss = nn.functional.mse_loss(decoder(network(shown)), targets[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                error += loss.item() * len(rows) / len(features)
        return error


def standardise(table: Tensor) -> Tensor:
    """Every column in deviations from its mean; constant ones are 0."""
    centred = table - table.mean(dim=0)
    return centred / centred.std(dim=0, correction=0).clamp(min=1e-12)
