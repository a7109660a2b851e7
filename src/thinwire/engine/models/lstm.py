"""A recurrent bottom model for time series, as C-VFL uses on intensive-care data."""

from __future__ import annotations

from torch import Tensor, nn

from thinwire.engine.models.checks import activation, check_input, require_size


class LSTM(nn.Module):
    """[B, T, in_features] -> the last hidden state -> [B, width]."""

    def __init__(self, in_features: int, hidden: int, width: int, out_activation: str | None = None) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.width = require_size(self, "width", width)
        self.lstm = nn.LSTM(self.in_features, require_size(self, "hidden", hidden), batch_first=True)
        self.linear = nn.Linear(self.lstm.hidden_size, self.width)
        self.activation = activation(out_activation, self, "out_activation")

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, "T", self.in_features)
        _, (last, _) = self.lstm(x)  # [1, B, hidden]
        h: Tensor = self.activation(self.linear(last[0]))
        return h
