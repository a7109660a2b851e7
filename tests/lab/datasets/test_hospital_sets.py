"""Stays in intensive care: hours, gaps, masks and words, against a plain loop."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.datasets.layouts import written
from thinwire.base.errors import BadInput
from thinwire.engine.models import LSTM
from thinwire.lab.datasets import VITALS_AND_LABS, PhysioNet2012, load_split
from thinwire.lab.datasets.hospital_sets import BENCHMARK_CHANNELS as CHANNELS
from thinwire.lab.datasets.hospital_sets import CHANNELS as MEASURED
from thinwire.lab.datasets.hospital_sets import COLUMNS, NORMAL, STATIC, WORDS, fill_forward
from thinwire.lab.datasets.vertical import ColumnsByName

# PhysioNet 2012 -------------------------------------------------------------------------------------------


def stay(record: int, lines: list[str]) -> str:
    facts = [f"00:00,RecordID,{record}", "00:00,Age,54", "00:00,Gender,0", "00:00,Height,-1", "00:00,ICUType,4"]
    return "\n".join(["Time,Parameter,Value", *facts, "00:00,Weight,-1", *lines]) + "\n"


def hospital(folder: Path, stays: int = 10) -> None:
    """Heart rates of 60 + record, ventilation from hour 5 in every other stay; every fifth patient dies."""
    for part, first in (("a", 100), ("b", 200)):
        outcomes = ["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"]
        for k in range(stays):
            lines = [f"02:10,HR,{k}", f"02:50,HR,{60 + k}", f"10:00,HR,{80 + k}", "48:00,Temp,37", "47:59,Temp,36"]
            lines += ["05:00,MechVent,1"] if k % 2 else []
            written(folder / f"set-{part}" / f"{first + k}.txt", stay(first + k, lines))
            outcomes.append(f"{first + k},6,1,5,-1,{int(k % 5 == 4)}")
        written(folder / f"Outcomes-{part}.txt", "\n".join(outcomes) + "\n")


def column(data: Any, name: str) -> torch.Tensor:
    (place,) = [k for k, one in enumerate([*MEASURED, *STATIC]) if one == name]
    return torch.cat(data.features, dim=2)[:, :, place]


def test_physionet_as_published(tmp_path: Path) -> None:
    hospital(tmp_path / "physionet2012")
    data = load_split("physionet2012", folder=tmp_path)
    assert [x.shape for x in data.features] == [(10, 48, 11), (10, 48, 11), (10, 48, 10), (10, 48, 10)]
    assert data.labels.tolist() == [0, 0, 0, 0, 1] * 2
    rates = column(data, "HR")
    values = np.array([[60 + k, 80 + k] for k in range(10)])  # the last one of hour 2, and that of hour 10
    low, high = np.percentile(values, [0.1, 99.9])
    clipped = values.clip(low, high)
    scaled = (clipped - clipped.mean()) / clipped.std()
    assert (rates[:, :2] == 0).all()
    np.testing.assert_allclose(rates[:, 2:10].numpy(), np.repeat(scaled[:, :1], 8, axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rates[:, 10:].numpy(), np.repeat(scaled[:, 1:], 38, axis=1), rtol=1e-4, atol=1e-5)
    ventilated = column(data, "MechVent")
    assert (ventilated[1::2, 5:] == 1).all()
    assert (ventilated[1::2, :5] == 0).all()
    assert (ventilated[::2] == 0).all()
    assert (column(data, "Height") == 0).all()
    assert LSTM(11, 8, 4)(data.features[0]).shape == (10, 4)


def test_masks_stay_with_their_measurement(tmp_path: Path) -> None:
    hospital(tmp_path / "physionet2012")
    plain = load_split("physionet2012", VITALS_AND_LABS, tmp_path)
    assert plain.names == ("bedside", "laboratory")
    assert [x.shape[2] for x in plain.features] == [15, 27]
    split = ColumnsByName({"bedside": ["HR", "Temp"], "other": ["Age"]})
    data = load_split(replace(PhysioNet2012(), masks=True), split, tmp_path)
    assert [x.shape[2] for x in data.features] == [4, 1]
    heart, temperature = data.features[0][:, :, 1], data.features[0][:, :, 3]
    assert [hour for hour in range(48) if heart[0, hour]] == [2, 10]
    assert [hour for hour in range(48) if temperature[0, hour]] == [47]
    assert "with masks" in data.about


def test_physionet_compact_is_the_same(tmp_path: Path) -> None:
    hospital(tmp_path / "a" / "physionet2012")
    x = np.full((20, 48, 37), np.nan, dtype=np.float32)
    for k in range(20):
        x[k, 2, MEASURED.index("HR")] = 60 + k % 10
        x[k, 10, MEASURED.index("HR")] = 80 + k % 10
        x[k, 47, MEASURED.index("Temp")] = 36
        if k % 2:
            x[k, 5, MEASURED.index("MechVent")] = 1
    static = np.tile(np.array([54, 0, np.nan, 4, np.nan], dtype=np.float32), (20, 1))
    file = written(tmp_path / "b" / "icu" / "physionet2012_48h_ab.npz", b"")
    arrays: dict[str, Any] = {
        "x": x,
        "static": static,
        "y": np.tile(np.array([0, 0, 0, 0, 1], dtype=np.int8), 4),
        "subset": np.array(["a"] * 10 + ["b"] * 10),
        "params": np.array(MEASURED),
        "static_names": np.array(STATIC),
    }
    np.savez(file, **arrays)
    one, other = (load_split("physionet2012", folder=tmp_path / name) for name in "ab")
    assert all(torch.equal(x, y) for x, y in zip(one.features, other.features, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(one.test_features, other.test_features, strict=True))
    assert torch.equal(one.test_labels, other.test_labels)
    np.savez(file, **{**arrays, "params": np.array(MEASURED[::-1])})
    with pytest.raises(BadInput, match="its measurements are not the challenge's 37 and 5"):
        load_split("physionet2012", folder=tmp_path / "b")
    np.savez(file, **{**arrays, "params": np.arange(37)})
    with pytest.raises(BadInput, match="'params' holds int64, not words"):
        load_split("physionet2012", folder=tmp_path / "b")
    np.savez(file, **{**arrays, "params": np.array(MEASURED, dtype=object)})
    with pytest.raises(BadInput, match="'params' is an array of Python objects, which thinwire never loads"):
        load_split("physionet2012", folder=tmp_path / "b")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("aa:00,HR,70", "line 8: 'aa:00', '70' is not a time and a value"),
        ("10:00,HR,fast", "line 8: '10:00', 'fast' is not a time and a value"),
        ("49:00,HR,70", "line 8: '49:00', '70' is outside the 48 hours"),
        ("10:00,HR,nan", "line 8: '10:00', 'nan' is outside the 48 hours or no number"),
        ("10:00,HR", "line 8 has 2 columns, expected 3; is it cut off?"),
        ("10:00,HR,1,2", "line 8 has 4 columns, expected 3; is it cut off?"),
    ],
)
def test_damaged_stays(tmp_path: Path, line: str, message: str) -> None:
    hospital(tmp_path / "physionet2012")
    file = written(tmp_path / "physionet2012" / "set-a" / "103.txt", stay(103, [line]))
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        load_split("physionet2012", folder=tmp_path)
    assert str(file) in str(refused.value)


def test_damaged_outcomes_and_missing_stays(tmp_path: Path) -> None:
    hospital(tmp_path / "physionet2012")
    (tmp_path / "physionet2012" / "set-b" / "205.txt").unlink()
    with pytest.raises(BadInput, match=r"205.txt does not exist"):
        load_split("physionet2012", folder=tmp_path)
    outcomes = tmp_path / "physionet2012" / "Outcomes-a.txt"
    written(outcomes, "RecordID,In-hospital_death\n../1,0\n")
    with pytest.raises(BadInput, match="line 2: not a RecordID and an In-hospital_death"):
        load_split("physionet2012", folder=tmp_path)
    written(outcomes, "RecordID,Died\n100,0\n")
    with pytest.raises(BadInput, match="there is no column 'In-hospital_death'"):
        load_split("physionet2012", folder=tmp_path)


def test_gaps_are_filled_from_the_hour_before() -> None:
    nan = float("nan")
    x = np.array([[[nan], [1], [nan], [nan], [2], [nan]]], dtype=np.float32)
    np.testing.assert_array_equal(fill_forward(x)[0, :, 0], [nan, 1, 1, 1, 2, 2])


# MIMIC-III ------------------------------------------------------------------------------------------------

HEADER = ["Hours", *CHANNELS]


def mimic(folder: Path, stays: list[list[dict[str, str]]]) -> None:
    """The same stays for training and testing; every other patient dies."""
    for part in ("train", "test"):
        listed = ["stay,y_true"]
        for k, rows in enumerate(stays):
            name = f"{k}_episode1_timeseries.csv"
            lines = [",".join(HEADER), *(",".join(row.get(one, "") for one in HEADER) for row in rows)]
            written(folder / part / name, "\n".join(lines) + "\n")
            listed.append(f"{name},{k % 2}")
        written(folder / part / "listfile.csv", "\n".join(listed) + "\n")


def plain_loop(rows: list[dict[str, str]]) -> np.ndarray:
    """The benchmark's rule, an hour and a measurement at a time: [48, 76] before numbers are standardised."""
    table = []
    for hour in range(48):
        values, masks = [], []
        for name in CHANNELS:
            so_far = [row for row in rows if row.get(name) and np.ceil(float(row["Hours"])) <= hour + 1]
            now = [row for row in so_far if np.ceil(float(row["Hours"])) == hour + 1 or hour == 0]
            text = so_far[-1][name] if so_far else NORMAL[name]
            values += [float(text == word) for word in WORDS[name]] if name in WORDS else [float(text)]
            masks.append(float(bool(now)))
        table.append(values + masks)
    return np.array(table)


def random_stays(count: int) -> list[list[dict[str, str]]]:
    rng = np.random.default_rng(0)
    stays = []
    for _ in range(count):
        rows = []
        for hours in np.sort(np.round(rng.uniform(0, 47.9, 30), 2)):
            row = {"Hours": str(hours)}
            for name in CHANNELS:
                if rng.random() < 0.3:
                    row[name] = str(rng.choice(WORDS[name])) if name in WORDS else str(round(rng.normal(50, 9), 1))
            rows.append(row)
        stays.append(rows)
    return stays


def test_mimic3_is_the_benchmarks_76_columns(tmp_path: Path) -> None:
    stays = random_stays(12)
    mimic(tmp_path / "in-hospital-mortality", stays)
    data = load_split("mimic3", folder=tmp_path)
    assert len(COLUMNS) == 76
    assert [x.shape for x in data.features] == [(12, 48, 19)] * 4
    assert data.labels.tolist() == [0, 1] * 6
    wanted = np.stack([plain_loop(rows) for rows in stays])
    for k, name in enumerate(COLUMNS):
        if name in CHANNELS:
            wanted[:, :, k] = (wanted[:, :, k] - wanted[:, :, k].mean()) / wanted[:, :, k].std()
    np.testing.assert_allclose(torch.cat(data.features, dim=2).numpy(), wanted, rtol=1e-3, atol=1e-4)
    assert LSTM(19, 8, 4)(data.features[0]).shape == (12, 4)


def test_values_after_48_hours_do_not_count(tmp_path: Path) -> None:
    early = [{"Hours": "48.0", "Glucose": "100"}]
    mimic(tmp_path / "a" / "in-hospital-mortality", [early, [*early, {"Hours": "48.5", "Glucose": "500"}]])
    data = load_split("mimic3", folder=tmp_path / "a")
    assert torch.equal(data.features[2][0], data.features[2][1])
    few = load_split("mimic3", folder=tmp_path / "a", rows=1, test_rows=2)
    assert len(few.labels) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"Hours": "soon"}, "line 2: Hours is 'soon', not a number"),
        ({"Hours": "-3"}, "line 2: Hours is '-3', before the stay"),
        ({"Hours": "1", "Glucose": "high"}, "line 2: 'Glucose' is 'high', which the benchmark does not know"),
        ({"Hours": "1", "Glucose": "nan"}, "line 2: 'Glucose' is 'nan'"),
        ({"Hours": "1", "Glascow coma scale total": "99"}, "'Glascow coma scale total' is '99'"),
        ({"Hours": "1", "pH": "7,4"}, "line 2 has 19 columns, expected 18; is it cut off?"),
    ],
)
def test_damaged_mimic3(tmp_path: Path, row: dict[str, str], message: str) -> None:
    mimic(tmp_path / "mimic3" / "in-hospital-mortality", [[{"Hours": "1"}], [row]])
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        load_split("mimic3", folder=tmp_path)
    assert "1_episode1_timeseries.csv" in str(refused.value)


def test_damaged_lists(tmp_path: Path) -> None:
    folder = tmp_path / "in-hospital-mortality"
    mimic(folder, [[{"Hours": "1"}]])
    for text, message in (
        ("stay,label\n", "expected stay,y_true"),
        ("stay,y_true\n../../secret.csv,1\n", "is not the name of a stay's file and 0 or 1"),
        ("stay,y_true\n0_episode1_timeseries.csv,2\n", "line 2"),
        ("stay,y_true\n9_episode1_timeseries.csv,1\n", "9_episode1_timeseries.csv does not exist"),
    ):
        written(folder / "train" / "listfile.csv", text)
        with pytest.raises(BadInput, match=re.escape(message)):
            load_split("mimic3", folder=tmp_path)
    written(folder / "train" / "listfile.csv", "stay,y_true\n0_episode1_timeseries.csv,1\n")
    written(folder / "train" / "0_episode1_timeseries.csv", "Hours,pH\n1,7\n")
    with pytest.raises(BadInput, match="its first line does not name Hours and the benchmark's 17 measurements"):
        load_split("mimic3", folder=tmp_path)
