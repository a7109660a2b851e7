"""Splits are values: every pixel and every field goes where they say, and to one party only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.lab.datasets.vertical import (
    ColumnsByCount,
    ColumnsByName,
    ColumnsByPattern,
    ColumnSplit,
    Halves,
    ImageSplit,
    Quadrants,
    Split,
    VerticalData,
    Views,
)

FIELDS = ["C1", "C2", "I1", "I2", "I3"]


@pytest.mark.parametrize(
    ("split", "parties"), [(Quadrants(), 4), (Halves(), 2), (Views(1), 12), (Views(2), 6), (Views(3), 4)]
)
@pytest.mark.parametrize("shape", [(12, 28, 28), (12, 7, 5)])
def test_every_pixel_goes_to_one_party(split: ImageSplit, parties: int, shape: tuple[int, int, int]) -> None:
    owners = np.zeros(shape, dtype=int)
    regions = split.regions(shape)
    for region in regions.values():
        owners[region] += 1
    assert (owners == 1).all()
    assert len(regions) == parties


def test_quadrants_are_in_reading_order() -> None:
    picture = np.arange(16).reshape(1, 4, 4)
    first = [int(picture[region].min()) for region in Quadrants().regions((1, 4, 4)).values()]
    assert first == [0, 2, 8, 10]
    assert list(Quadrants().regions((1, 4, 4))) == ["upper_left", "upper_right", "lower_left", "lower_right"]


def test_views_are_neighbours() -> None:
    regions = Views(3).regions((12, 8, 8))
    assert list(regions) == ["views_1_to_3", "views_4_to_6", "views_7_to_9", "views_10_to_12"]
    assert [np.arange(12)[views].tolist() for views, _, _ in regions.values()][1] == [3, 4, 5]
    assert list(Views(1).regions((2, 8, 8))) == ["view_1", "view_2"]


@pytest.mark.parametrize(
    "split",
    [
        ColumnsByCount((2, 3), ("a", "label")),
        ColumnsByName({"a": ["C1", "C2"], "label": ("I1", "I2", "I3")}),
        ColumnsByName((("a", ("C1", "C2")), ("label", ("I1", "I2", "I3")))),
        ColumnsByPattern({"a": "C*", "label": "I*"}),
        ColumnsByPattern((("a", ("C1", "C2")), ("label", ["I[123]"]))),
    ],
)
def test_three_ways_to_say_the_same(split: ColumnSplit) -> None:
    assert split.assign(FIELDS) == {"a": ("C1", "C2"), "label": ("I1", "I2", "I3")}
    assert isinstance(split, ColumnSplit)
    assert not isinstance(split, ImageSplit)


def test_splits_are_values() -> None:
    assert ColumnsByName({"a": ["x"]}) == ColumnsByName((("a", ("x",)),))
    assert len({Quadrants(), Quadrants(), Views(1), Views(1), Views(2), ColumnsByPattern({"a": "C*"})}) == 4
    assert hash(ColumnsByCount((1, 2))) == hash(ColumnsByCount((1, 2), ("party_1", "party_2")))


def test_order_within_a_party_is_the_one_given_by_name() -> None:
    assert ColumnsByName({"a": ["I3", "C1"]}).assign(FIELDS) == {"a": ("I3", "C1")}


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (ColumnsByCount((2, 2)), r"2 \+ 2 = 4 fields, the data set has 5"),
        (ColumnsByCount((5, 0)), "party 'party_2' is given no field"),
        (ColumnsByCount((2, 3), ("a", "a")), "two parties have the same name"),
        (ColumnsByName({"a": ["C1"], "b": ["C1"]}), "field 'C1' is given twice, to 'a' and 'b'"),
        (ColumnsByName({"a": ["C11"]}), "there is no field 'C11', there are 'C1', .* did you mean 'C1'"),
        (ColumnsByName({"label": ["C1"]}), "no feature party"),
        (ColumnsByPattern({"a": "D*"}), r"party 'a': no field fits 'D\*'"),
        (ColumnsByPattern({"a": "C*", "b": "*1"}), "field 'C1' is given twice"),
    ],
)
def test_splits_that_do_not_fit(split: ColumnSplit, message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        split.assign(FIELDS)


def test_splits_that_cannot_be() -> None:
    with pytest.raises(BadParameter, match="12 views cannot be split 5 per party"):
        Views(5).regions((12, 8, 8))
    with pytest.raises(BadParameter, match="per_party must be 1 or more"):
        Views(0)
    with pytest.raises(BadParameter, match="2 counts, but 1 names"):
        ColumnsByCount((1, 2), ("a",))


def test_protocols_tell_pictures_from_columns() -> None:
    pictures: list[Split] = [Quadrants(), Halves(), Views(1)]
    assert all(isinstance(split, ImageSplit) and not isinstance(split, ColumnSplit) for split in pictures)


def test_vertical_data_fits_together() -> None:
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    assert VerticalData(("a",), (x,), (x,), y, y, x, x).label_features is x
    for parts, message in (
        ((("a", "b"), (x,), (x,), y, y), "2 feature parties, 1 tensors of training features"),
        ((("a",), (x[:2],), (x,), y, y), "party 'a': 2 training rows of features, but 3 labels"),
        ((("a",), (x,), (x,), y, y[:1]), "party 'a': 3 test rows of features, but 1 labels"),
        ((("a",), (x,), (x.double(),), y, y), "party 'a': its test features are torch.float64"),
        ((("a",), (x,), (x,), y, y, x[:1], x), "party 'label': 1 training rows"),
    ):
        with pytest.raises(BadTensor, match=message):
            VerticalData(*parts)
