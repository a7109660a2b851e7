"""A multi-view network (Su et al., 2015), cut down to one small convolutional net a party."""

from __future__ import annotations

from torch import Tensor, nn

from thinwire.models.activations import activation
from thinwire.models.checks import check_input, checked_size
from thinwire.models.cnn import convolutions

__all__ = ["MVCNN"]

_CHANNELS = (32, 64)
_GRID = 4  # the linear layer sees 4 x 4 places, whatever the size of the images


class MVCNN(nn.Module):
    """Grey images of a party's views, [B, views, H, W] -> [B, width].

    Every view passes the same convolutions; the maximum over the views then goes to the linear layer.
    """

    def __init__(self, width: int, views: int = 1, out_activation: str | None = None) -> None:
        super().__init__()
        self.width = checked_size(self, "width", width)
        self.views = checked_size(self, "views", views)
        self.features = nn.Sequential(convolutions(1, _CHANNELS), nn.AdaptiveAvgPool2d(_GRID))
        self.linear = nn.Linear(_CHANNELS[-1] * _GRID**2, self.width)
        self.activation = activation(out_activation, self, "out_activation")

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, self.views, "H", "W")
        each: Tensor = self.features(x.flatten(0, 1).unsqueeze(1))  # [B * views, C, 4, 4]
        strongest = each.reshape(x.shape[0], self.views, self.linear.in_features).amax(dim=1)
        h: Tensor = self.activation(self.linear(strongest))
        return h
