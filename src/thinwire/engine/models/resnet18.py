"""ResNet-18 (He et al., 2016) for images of CIFAR's size and its quadrants."""

from __future__ import annotations

from torch import Tensor, nn

from thinwire.engine.models.checks import activation, check_input, require_size


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
