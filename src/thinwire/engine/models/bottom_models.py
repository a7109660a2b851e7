"""Bottom models for images and time series.

Two convolutions and a linear layer (C-VFL, PBM-VFL); a small multi-view network (after Su et al., 2015); ResNet-18
(He et al., 2016) for images of CIFAR's size and its quadrants; an LSTM, as C-VFL uses on intensive-care data.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from thinwire.base.errors import BadParameter
from thinwire.engine.models.checks import activation, check_input, require_size, require_sizes


def convolutions(in_channels: int, channels: Sequence[int]) -> nn.Sequential:
    """For each of `channels` a 3 x 3 convolution, ReLU and a 2 x 2 maximum that halves the image."""
    layers: list[nn.Module] = []
    for out_channels in channels:
        layers += [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        in_channels = out_channels
    return nn.Sequential(*layers)


class CNN(nn.Module):
    """[B, in_channels, *image_size] -> [B, width]. PBM-VFL bounds the embedding: out_activation="tanh"."""

    def __init__(
        self,
        in_channels: int,
        width: int,
        image_size: Sequence[int],
        channels: Sequence[int] = (32, 64),
        out_activation: str | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = require_size(self, "in_channels", in_channels)
        self.width = require_size(self, "width", width)
        self.image_size = require_sizes(self, "image_size", image_size, low=4)
        kernels = require_sizes(self, "channels", channels)
        if len(self.image_size) != 2 or len(kernels) != 2:
            raise BadParameter.about(
                "CNN", "image_size", f"and channels need two numbers each, got {image_size} and {channels}"
            )
        height, side = self.image_size
        self.features = convolutions(self.in_channels, kernels)
        self.linear = nn.Linear(kernels[-1] * (height // 4) * (side // 4), self.width)
        self.activation = activation(out_activation, self, "out_activation")

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, self.in_channels, *self.image_size)
        h: Tensor = self.activation(self.linear(self.features(x).flatten(1)))
        return h


_CHANNELS = (32, 64)
_GRID = 4  # the linear layer sees 4 x 4 places, whatever the size of the images


class MVCNN(nn.Module):
    """Grey images of a party's views, [B, views, H, W] -> [B, width].

    Every view passes the same convolutions; the maximum over the views then goes to the linear layer.
    """

    def __init__(self, width: int, views: int = 1, out_activation: str | None = None) -> None:
        super().__init__()
        self.width = require_size(self, "width", width)
        self.views = require_size(self, "views", views)
        self.features = nn.Sequential(convolutions(1, _CHANNELS), nn.AdaptiveAvgPool2d(_GRID))
        self.linear = nn.Linear(_CHANNELS[-1] * _GRID**2, self.width)
        self.activation = activation(out_activation, self, "out_activation")

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, self.views, "H", "W")
        each: Tensor = self.features(x.flatten(0, 1).unsqueeze(1))  # [B * views, C, 4, 4]
        strongest = each.reshape(x.shape[0], self.views, self.linear.in_features).amax(dim=1)
        h: Tensor = self.activation(self.linear(strongest))
        return h


# ResNet-18 (He et al., 2016) for images of CIFAR's size and its quadrants -----------------------------------------


class _Block(nn.Module):
    """relu(x + two normalised 3 x 3 convolutions of x)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inputs, outputs, 3, stride), nn.ReLU(), *_convolution(outputs, outputs, 3)
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x) + self.shortcut(x)
        return h.relu()


class ResNet18(nn.Module):
    """[B, in_channels, H, W] -> [B, width], with a 3 x 3 stem and no first pooling.

    `base_width` 64 is the paper's network, 16 one for small machines. Its batch normalisation needs two
    rows a batch where images are 8 x 8 or smaller.
    """

    def __init__(self, in_channels: int, width: int, base_width: int = 64, out_activation: str | None = None) -> None:
        super().__init__()
        self.in_channels = require_size(self, "in_channels", in_channels)
        self.width = require_size(self, "width", width)
        channels = base_width = require_size(self, "base_width", base_width)
        layers: list[nn.Module] = [*_convolution(self.in_channels, channels, 3), nn.ReLU()]
        for stage in range(4):
            outputs = base_width * 2**stage
            layers += [_Block(channels, outputs, 2 if stage else 1), _Block(outputs, outputs, 1)]
            channels = outputs
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(channels, self.width)
        self.activation = activation(out_activation, self, "out_activation")

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, self.in_channels, "H", "W")
        features: Tensor = self.features(x)
        h: Tensor = self.activation(self.linear(features.mean(dim=(2, 3))))
        return h


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    """A convolution without bias, normalised; same image size at stride 1."""
    return [
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    ]


# A recurrent bottom model for time series, as C-VFL uses on intensive-care data -----------------------------------


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
