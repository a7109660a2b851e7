"""The real data sets, as many rows and labels as their publishers say. Needs THINWIRE_DATA (make test-data)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from thinwire.engine.models import DeepTower
from thinwire.lab.datasets import VITALS_AND_LABS, Scale, load_split
from thinwire.lab.datasets.vertical import Halves, Split, Views

pytestmark = pytest.mark.data


@dataclass(frozen=True)
class Wanted:
    """Rows (training, test; None for a hash split), shapes a row of each party, and the share of each class."""

    rows: tuple[int | None, int | None]
    total: int
    shapes: tuple[tuple[int, ...], ...]
    shares: tuple[float, ...]
    label_width: int | None = None


TEN = (0.1,) * 10
MODELNET_TRAIN = (106, 515, 889, 200, 200, 465, 200, 680, 392, 344)

SETS: dict[str, Wanted] = {
    "mnist": Wanted((60_000, 10_000), 70_000, ((1, 14, 14),) * 4, TEN),
    "fashion_mnist": Wanted((60_000, 10_000), 70_000, ((1, 14, 14),) * 4, TEN),
    "cifar10": Wanted((10_000, 2_000), 12_000, ((3, 16, 16),) * 4, TEN),
    "modelnet10": Wanted((3_991, 908), 4_899, ((1, 32, 32),) * 12, tuple(n / 3_991 for n in MODELNET_TRAIN)),
    "criteo": Wanted((None, None), 22_076, ((26,),), (0.76, 0.24), 13),
    "avazu": Wanted((None, None), 14_077, ((14,),), (0.83, 0.17), 8),
    "movielens": Wanted((None, None), 1_000_209, ((5,),), (0.425, 0.575), 20),
    "physionet2012": Wanted((4_000, 4_000), 8_000, ((48, 11),) * 2 + ((48, 10),) * 2, (0.86, 0.14)),
    "credit_card": Wanted((None, None), 30_000, ((11,), (12,)), (0.78, 0.22)),
    "bank_marketing": Wanted((None, None), 41_188, ((7,), (12,)), (0.89, 0.11)),
    "covtype": Wanted((None, None), 581_012, ((10,), (44,)), (0.365, 0.488, 0.062, 0.005, 0.016, 0.030, 0.035)),
}


@pytest.mark.parametrize("name", SETS)
def test_rows_shapes_and_label_shares(name: str) -> None:
    wanted = SETS[name]
    data = load_split(name)
    counts = (len(data.labels), len(data.test_labels))
    assert sum(counts) == wanted.total
    assert all(asked in (None, count) for asked, count in zip(wanted.rows, counts, strict=True))
    for features, rows in ((data.features, counts[0]), (data.test_features, counts[1])):
        assert tuple(tuple(x.shape) for x in features) == tuple((rows, *shape) for shape in wanted.shapes)
        assert all(x.dtype == torch.float32 and x.isfinite().all() for x in features)
    assert (None if data.label_features is None else data.label_features.shape[1]) == wanted.label_width
    shares = data.labels.bincount() / counts[0]
    assert shares.tolist() == pytest.approx(list(wanted.shares), abs=0.015)
    for party, sizes in data.categories.items():
        x = data.label_features if party == "label" else data.features[data.names.index(party)]
        assert x is not None
        codes = x[:, : len(sizes)]
        assert (codes >= 0).all()
        assert (codes < torch.tensor(sizes)).all()
        assert (codes == codes.long()).all()
        assert DeepTower(sizes, x.shape[1] - len(sizes), 4, [8], 16)(x[:64]).shape == (64, 16)


@pytest.mark.parametrize(
    ("name", "split", "shapes"),
    [
        ("mnist", Halves(), [(1, 28, 14)] * 2),
        ("modelnet10", Views(3), [(3, 32, 32)] * 4),
        ("modelnet10", Views(2), [(2, 32, 32)] * 6),
        ("physionet2012", VITALS_AND_LABS, [(48, 15), (48, 27)]),
    ],
)
def test_other_splits_and_subsets(name: str, split: Split, shapes: list[tuple[int, ...]]) -> None:
    data, again = (load_split(name, split, rows=500, test_rows=200, seed=1) for _ in range(2))
    assert [tuple(x.shape) for x in data.features] == [(500, *shape) for shape in shapes]
    assert len(data.test_labels) == 200
    assert all(torch.equal(x, y) for x, y in zip(data.features, again.features, strict=True))


def test_mnist_is_normalised_by_its_own_moments() -> None:
    whole = torch.cat([x.flatten() for x in load_split("mnist").features])
    assert whole.mean().item() == pytest.approx(0, abs=1e-3)
    assert whole.std().item() == pytest.approx(1, abs=1e-3)
    unit = torch.cat([x.flatten() for x in load_split("mnist", scale=Scale.UNIT).features])
    assert (unit.min().item(), unit.max().item()) == (0, 1)
