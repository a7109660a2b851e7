"""The papers' data sets as vertical data: found in a folder of yours, cut, scaled, the same rows every time."""

from __future__ import annotations

from pathlib import Path

from thinwire.base.errors import BadInput, BadParameter
from thinwire.base.format import did_you_mean
from thinwire.lab.datasets.click_sets import Avazu, Criteo, MovieLens
from thinwire.lab.datasets.dataset_files import find_data_folder, read_catalogue
from thinwire.lab.datasets.hospital_sets import VITALS_AND_LABS, Mimic3, PhysioNet2012
from thinwire.lab.datasets.imagenet_set import ImageNet100
from thinwire.lab.datasets.picture_sets import CifarSet, DigitSet, ModelNet10
from thinwire.lab.datasets.sampling import Subset
from thinwire.lab.datasets.tabular_sets import BANK_MARKETING, COVTYPE, CREDIT_CARD, TabularSet
from thinwire.lab.datasets.vertical import DataSet, Request, Scale, Split, VerticalData

__all__ = ["DATA_SETS", "VITALS_AND_LABS", "Avazu", "CifarSet", "Criteo", "DataSet", "DigitSet", "ImageNet100"]
__all__ += ["Mimic3", "ModelNet10", "MovieLens", "PhysioNet2012", "Request", "Scale", "TabularSet", "load_split"]

_ALL: tuple[DataSet, ...] = (
    *(read_catalogue(DigitSet, name) for name in ("mnist", "fashion_mnist")),
    *(read_catalogue(CifarSet, name) for name in ("cifar10", "cifar100")),
    ModelNet10(),
    ImageNet100(),
    *(Criteo(), Avazu(), MovieLens()),
    *(Mimic3(), PhysioNet2012()),
    *(CREDIT_CARD, BANK_MARKETING, COVTYPE),
)
DATA_SETS: dict[str, DataSet] = {one.name: one for one in _ALL}


def load_split(
    name: str | DataSet,
    split: Split | None = None,
    folder: Path | None = None,
    *,
    rows: int | None = None,
    test_rows: int | None = None,
    seed: int = 0,
    scale: Scale | None = None,
    download: bool = False,
) -> VerticalData:
    """A data set by name, or a changed one by value, cut as `split` says.

    `folder` None is THINWIRE_DATA. `rows` and `test_rows` keep a subset, every class in its share, drawn by
    `seed`. `scale` is for pictures. `download` fetches what may be fetched and is not there.
    """
    data_set = _named(name) if isinstance(name, str) else name
    if scale is not None and not isinstance(data_set, DigitSet | CifarSet | ModelNet10 | ImageNet100):
        raise BadParameter(f"{data_set.name}: scale is for pictures; leave it out")
    request = Request(find_data_folder(folder, data_set.source), Subset(rows, test_rows, seed), scale, download)
    data = data_set.load(split or data_set.default_split, request)
    for part, labels in (("training", data.labels), ("test", data.test_labels)):
        if not len(labels):
            raise BadInput(f"{data_set.name}: the files hold so few rows that none is left for the {part} rows")
    return data


def _named(name: str) -> DataSet:
    if name not in DATA_SETS:
        raise BadParameter(
            f"there is no data set {name!r}; there are {', '.join(DATA_SETS)}{did_you_mean(name, DATA_SETS)}"
        )
    return DATA_SETS[name]
