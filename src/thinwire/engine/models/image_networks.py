"""Bottom models for images, that job files know by name.

Two convolutions and a linear layer (C-VFL, PBM-VFL); small multi-view networks (after Su et al., 2015), one of them
EF-VFL's; ResNet-18 (He et al., 2016) for images of CIFAR's size and its quadrants.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from torch import Tensor, nn

from thinwire.base.errors import BadParameter
from thinwire.engine.compress.parameters import require_size, require_sizes
from thinwire.engine.models.networks import build_activation, check_input


def convolutions(in_channels: int, channels: Sequence[int]) -> nn.Sequential:
    """For each of `channels` a 3 x 3 convolution, a 2 x 2 maximum that halves the image and ReLU."""
    layers: list[nn.Module] = []
    for out_channels in channels:
        # After the maximum: the same bits and gradients as before it, on a quarter of the values.
        layers += [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        in_channels = out_channels
    return nn.Sequential(*layers)


class CNN(nn.Module):
    """Two convolutions and a linear layer: [B, in_channels, *image_size] -> [B, width].

    Args:
        in_channels: channels of an image.
        width: embedding width.
        image_size: height and width, 4 or more each.
        channels: of the two convolutions.
        out_activation: such as "tanh", which bounds the embedding for PBM-VFL.

    Raises:
        BadParameter: a size is out of range, or not two sizes and two channels.

    Examples:
        >>> import torch
        >>> tw.models.CNN(1, 8, (12, 12))(torch.rand(2, 1, 12, 12)).shape
        torch.Size([2, 8])
    """

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
        self.activation = build_activation(out_activation, self, "out_activation")

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, self.in_channels, *self.image_size)
        h: Tensor = self.activation(self.linear(self.features(x).flatten(1)))
        return h


_GRID = 4  # the linear layer sees 4 x 4 places, whatever the size of the images


class MVCNN(nn.Module):
    """Grey images of a party's views: [B, views, H, W] -> [B, width].

    Every view goes through the same convolutions; the maximum over the views goes to the linear layer.

    Args:
        width: embedding width.
        views: images per row.
        out_activation: such as "tanh"; none unless given.
        channels: of the two convolutions.

    Raises:
        BadParameter: a size below 1, not two channels, or an unknown activation.

    Examples:
        >>> import torch
        >>> tw.models.MVCNN(4, views=2)(torch.rand(1, 2, 32, 32)).shape
        torch.Size([1, 4])
    """

    def __init__(
        self, width: int, views: int = 1, out_activation: str | None = None, channels: Sequence[int] = (32, 64)
    ) -> None:
        super().__init__()
        self.width = require_size(self, "width", width)
        self.views = require_size(self, "views", views)
        kernels = require_sizes(self, "channels", channels)
        if len(kernels) != 2:
            raise BadParameter.about("MVCNN", "channels", f"need two numbers, got {channels}")
        self.features = nn.Sequential(convolutions(1, kernels), nn.AdaptiveAvgPool2d(_GRID))
        self.linear = nn.Linear(kernels[-1] * _GRID**2, self.width)
        self.activation = build_activation(out_activation, self, "out_activation")

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, self.views, "H", "W")
        each: Tensor = self.features(_separate_views(x))  # [B * views, C, 4, 4]
        strongest = each.reshape(x.shape[0], self.views, self.linear.in_features).amax(dim=1)
        h: Tensor = self.activation(self.linear(strongest))
        return h


class ViewCNN(nn.Module):
    """EF-VFL's network for ModelNet10, on grey images of a party's views: [B, views, *image_size] -> [B, width].

    Three normalised 3 x 3 convolutions, each with 3 x 3 max pooling and ReLU; the first and the last halve the image.
    Then the maximum over the views and a linear layer. The paper does not say; the authors' code uses width 16,
    images of 32 x 32 and fusion "concat".

    Args:
        width: embedding width.
        image_size: height and width, 15 or more each.
        views: images per row.
        channels: of the three convolutions.
        norm: "batch" or "group".

    Raises:
        BadParameter: a size is out of range, or not two sizes and three channels.

    Examples:
        >>> import torch
        >>> tw.models.ViewCNN(4, (32, 32), norm="group")(torch.rand(2, 1, 32, 32)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        width: int,
        image_size: Sequence[int],
        views: int = 1,
        channels: Sequence[int] = (16, 32, 64),
        norm: str = "batch",
    ) -> None:
        super().__init__()
        self.width = require_size(self, "width", width)
        self.views = require_size(self, "views", views)
        self.image_size = require_sizes(self, "image_size", image_size, low=15)
        kernels = require_sizes(self, "channels", channels)
        if len(self.image_size) != 2 or len(kernels) != len(_STRIDES):
            raise BadParameter(f"ViewCNN: give two sizes and three channels, got {image_size} and {channels}")
        layers: list[nn.Module] = []
        for inputs, outputs, stride in zip((1, *kernels), kernels, _STRIDES, strict=False):
            layers += [*_convolution(inputs, outputs, 3, norm=norm), nn.MaxPool2d(3, stride), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(kernels[-1] * prod(map(_shrink, self.image_size)), self.width)

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, self.views, *self.image_size)
        each: Tensor = self.features(_separate_views(x))
        h: Tensor = self.linear(each.reshape(x.shape[0], self.views, self.linear.in_features).amax(dim=1))
        return h


def _separate_views(x: Tensor) -> Tensor:
    """[B, views, H, W] -> [B * views, 1, H, W], with the channel innermost in memory.

    Convolutions and maxima keep that order, in which they take 0.6 of the time; of one channel it is a view.
    """
    return x.flatten(0, 1).unsqueeze(-1).permute(0, 3, 1, 2)


_STRIDES = (2, 1, 2)  # of the maxima


def _shrink(size: int) -> int:
    """What the three maxima leave of an image's side."""
    for stride in _STRIDES:
        size = (size - 3) // stride + 1
    return size


class _Block(nn.Module):
    """relu(x + two normalised 3 x 3 convolutions of x)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        first, second = _convolution(inputs, outputs, 3, stride, norm), _convolution(outputs, outputs, 3, norm=norm)
        self.body = nn.Sequential(*first, nn.ReLU(), *second)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride, norm))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x) + self.shortcut(x)
        return h.relu()


class ResNet18(nn.Module):
    """[B, in_channels, H, W] -> [B, width], with a 3 x 3 stem and no first pooling.

    Args:
        in_channels: channels of an image.
        width: embedding width.
        base_width: 64 is the paper's network, 32 that of EF-VFL's code, 16 suits small machines.
        out_activation: such as "tanh"; none unless given.
        norm: "batch", which needs two rows per batch for images up to 8 x 8, or "group" (Wu & He, 2018), which
            computes every row by itself, as guarantees for single rows require.

    Raises:
        BadParameter: a size below 1, or an unknown activation or norm.

    Examples:
        >>> import torch
        >>> tw.models.ResNet18(3, 4, base_width=4, norm="group")(torch.rand(1, 3, 16, 16)).shape
        torch.Size([1, 4])
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        base_width: int = 64,
        out_activation: str | None = None,
        norm: str = "batch",
    ) -> None:
        super().__init__()
        self.in_channels = require_size(self, "in_channels", in_channels)
        self.width = require_size(self, "width", width)
        channels = base_width = require_size(self, "base_width", base_width)
        layers: list[nn.Module] = [*_convolution(self.in_channels, channels, 3, norm=norm), nn.ReLU()]
        for stage in range(4):
            outputs = base_width * 2**stage
            layers += [_Block(channels, outputs, 2 if stage else 1, norm), _Block(outputs, outputs, 1, norm)]
            channels = outputs
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(channels, self.width)
        self.activation = build_activation(out_activation, self, "out_activation")

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, self.in_channels, "H", "W")
        features: Tensor = self.features(x)
        h: Tensor = self.activation(self.linear(features.mean(dim=(2, 3))))
        return h


_GROUPS = 32  # at most; as many as divide the channels


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, norm: str = "batch") -> list[nn.Module]:
    """A convolution without bias, normalised; same image size at stride 1."""
    return [nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False), _build_norm(norm, outputs)]


def _build_norm(norm: str, channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(gcd(channels, _GROUPS), channels)
    raise BadParameter(f"norm must be 'batch' or 'group', got {norm!r}")
