"""Parties as people write them: what their tables, labels and weights may be, and what they say of themselves."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

import thinwire as tw
from thinwire.base.errors import BadColumn, BadInput, BadLabels, BadTensor, IncompatibleRecipe
from thinwire.engine.privacy.defences import LabelDP
from thinwire.report.progress import is_notebook

NUMBERS = [[1, 2], [3, 4], [5, 6]]


def read(features: Any) -> Tensor:
    tensor = tw.FeatureParty("bank", features, nn.Linear(2, 1)).features
    assert isinstance(tensor, Tensor)
    return tensor


@pytest.mark.parametrize(
    "features",
    [
        NUMBERS,
        np.array(NUMBERS, dtype=np.uint16),
        np.array(NUMBERS, dtype=">f8"),
        np.array(NUMBERS, dtype=np.longdouble),
        np.array(NUMBERS, dtype=object),
        np.array(NUMBERS)[::-1][::-1],
        np.array(NUMBERS)[::-1].copy()[::-1],  # strides below 0
        pd.DataFrame(NUMBERS, columns=["a", "a"]),
        pd.DataFrame(NUMBERS).astype({0: "Int64", 1: "Float32"}),
        pd.DataFrame(NUMBERS).astype(object),
        [torch.tensor(row) for row in NUMBERS],
    ],
)
def test_features_are_any_table_of_numbers(features: Any) -> None:
    assert torch.equal(read(features), torch.tensor(NUMBERS, dtype=torch.float32))


def test_truth_values_are_numbers_and_a_tensor_is_not_copied() -> None:
    assert read(pd.DataFrame({"a": [True, False], "b": [0.5, 1]})).tolist() == [[1, 0.5], [0, 1]]
    given = torch.ones(3, 2)
    assert read(given) is given


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (["baker", "smith"], "column 'job' holds text; convert it to numbers with thinwire.data.prepare"),
        (["1.5", "2"], "column 'job' holds text"),
        (pd.Categorical([3, 4]), "column 'job' holds categories"),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), "column 'job' holds dates"),
        (pd.array([1, None], dtype="Int64"), "party 'bank': features"),
        ([1j, 2j], "column 'job' holds complex numbers"),
    ],
)
def test_columns_that_are_no_numbers_are_refused_by_name(column: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read(pd.DataFrame({"age": [1, 2], "job": column}))


def test_other_things_that_are_no_table_are_refused() -> None:
    with pytest.raises(BadTensor, match=r"sparse matrix is not supported; give its \.toarray\(\)"):
        read(csr_array(np.eye(2)))
    with pytest.raises(BadTensor, match="is not an array"):
        read([[1, 2], [3]])
    with pytest.raises(BadColumn, match="features hold text"):
        read(np.array([["a", "b"]]))


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 1], (0, 1, 1), np.array([0, 1, 1], np.uint8), pd.Series([0, 1, 1], index=[7, 8, 9]), [False, 1, 1]],
)
def test_labels_are_any_line_of_numbers(labels: Any) -> None:
    party = tw.LabelParty("shop", labels, nn.Linear(1, 2))
    assert torch.equal(party.labels, torch.tensor([0, 1, 1]))


def test_labels_of_text_are_refused_with_the_way_to_code_them() -> None:
    for labels in (["yes", "no"], pd.Series(["yes", "no"]), np.array(["yes", "no"])):
        with pytest.raises(BadLabels, match=r"labels hold text, not numbers; encode classes with .*np\.unique"):
            tw.LabelParty("shop", labels, nn.Linear(1, 2))


# A job of two parties ---------------------------------------------------------------------------------------------


def build(rows: list[int], recipe: Any = None, **given: Any) -> tw.Job:
    """A job of these rows of a small table, always with the same weights to begin with."""
    rng = torch.Generator().manual_seed(0)
    x, own = torch.randn(12, 3, generator=rng), torch.randn(12, 2, generator=rng)
    y = given.pop("labels", torch.arange(12) % 3)
    torch.manual_seed(0)
    label = tw.LabelParty("shop", y[rows], nn.Linear(4, 3), features=own[rows], bottom=nn.Linear(2, 4), **given)
    return tw.Job(
        [tw.FeatureParty("bank", x[rows], nn.Linear(3, 4))],
        label,
        recipe or tw.methods.svfl(),
        tw.SGD(lr=0.5),
        epochs=5,
    )


def weights_of(job: tw.Job) -> list[Tensor]:
    tw.train(job, callbacks=[])
    return [parameter.detach() for module in job.modules().values() for parameter in module.parameters()]


def test_a_weight_counts_as_so_many_copies_of_a_row() -> None:
    copies = [3, 1, 2, 1, 1, 1, 4, 1, 1, 1, 1, 1]
    repeated = [row for row, count in enumerate(copies) for _ in range(count)]
    scaled = torch.tensor(copies) * 12 / sum(copies)
    found, wanted = weights_of(build(list(range(12)), sample_weight=scaled)), weights_of(build(repeated))
    plain = weights_of(build(list(range(12))))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
    assert not all(torch.allclose(a, b) for a, b in zip(found, plain, strict=True))


def test_the_digest_of_the_data_does_not_depend_on_the_size_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(list(range(12))).digests()["data"]
    monkeypatch.setattr("thinwire.engine.streams.storage.BLOCK", 8)
    assert build(list(range(12))).digests()["data"] == whole


def test_the_training_loss_is_the_weighted_one_and_weights_belong_to_the_digest() -> None:
    weights = torch.linspace(0, 2, 12)
    one, two = build(list(range(12)), sample_weight=weights.tolist()), build(list(range(12)))
    assert one.digests()["data"] != two.digests()["data"]
    first = tw.train(one, callbacks=[]).history[0]["train"]["loss"]
    label, bank = two.label_party, two.parties[0]
    with torch.no_grad():
        h = bank.bottom(bank.features) + label.bottom(label.features)  # type: ignore[misc]
        losses = nn.functional.cross_entropy(label.top(h), label.labels, reduction="none")
    assert first == pytest.approx(float((losses * weights).mean()), rel=1e-6)


def test_batches_and_cached_steps_take_the_weights_of_their_rows() -> None:
    """A row without weight might have any label."""
    rows, weights = list(range(12)), [1.0] * 11 + [0.0]
    other = torch.arange(12) % 3
    other[11] = 0
    for recipe in (tw.methods.celu(3, 3), tw.methods.thin()):
        jobs = [build(rows, recipe, sample_weight=weights), build(rows, recipe, sample_weight=weights, labels=other)]
        for job in jobs:
            job.batch_size = 4
        one, two = map(weights_of, jobs)
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0] * 11, r"one number per row, 12 of them, got shape \[11\]"),
        (np.ones((12, 2)), r"got shape \[12, 2\]"),
        ([0.0] * 12, "not zero for all rows"),
        ([-1.0] * 12, "must be 0 or more"),
        ([float("nan")] * 12, "sample_weight"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, said: str) -> None:
    with pytest.raises(BadTensor, match=said):
        build(list(range(12)), sample_weight=weights)


def test_weights_are_refused_where_they_would_leave_the_label_party_or_a_guarantee() -> None:
    shared = build(list(range(12)), tw.methods.cvfl(tw.compress.TopK(0.5)), sample_weight=[1.0] * 12)
    with pytest.raises(IncompatibleRecipe, match="with shared labels every party computes the loss"):
        shared.check()
    private = build(list(range(12)), replace(tw.methods.thin(), defence=LabelDP(1.0)), sample_weight=[1.0] * 12)
    with pytest.raises(IncompatibleRecipe, match="LabelDP does not cover"):
        private.check()


def test_labels_of_one_class_are_refused_before_the_start() -> None:
    with pytest.raises(BadLabels, match="labels: all 12 rows have class 1; training needs at least two classes"):
        tw.train(build(list(range(12)), labels=torch.ones(12, dtype=torch.long)))


def test_jobs_parties_and_results_are_shown_in_a_line_without_values() -> None:
    job = build(list(range(12)), sample_weight=[1.0] * 12)
    assert repr(job.parties[0]) == "FeatureParty('bank', features=[12, 3], bottom=Linear)"
    assert repr(job.label_party) == (
        "LabelParty('shop', labels=[12], top=Linear, features=[12, 2], bottom=Linear, sample_weight=[12])"
    )
    assert (
        repr(job) == "Job(svfl: bank [12, 3], shop [12, 2], labels at shop [12]; batch_size=None, epochs=5, seed=0)"
    )
    result = tw.train(job, callbacks=[])
    assert repr(result).startswith("Result(svfl: round 5, epoch 5, training loss ")
    assert ", up " in repr(result)
    assert "tensor" not in repr(result)
    assert result._repr_html_().startswith("<table><tr><th>method</th><td>svfl</td></tr>")


# Progress ---------------------------------------------------------------------------------------------------------


class Output:
    """What a notebook shows under a cell."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, shown: dict[str, str], raw: bool, display_id: bool) -> Output:
        assert raw
        assert display_id
        self.shown.append(shown)
        return self

    def update(self, shown: dict[str, str], raw: bool) -> None:
        self.shown.append(shown)


def test_a_bar_follows_a_run_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, ipython, display = Output(), ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = output.display  # type: ignore[attr-defined]
    assert not is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    tw.train(build(list(range(12))))
    assert output.shown[0]["text/plain"] == "svfl: round 0/5, starting"
    last = output.shown[-1]
    assert last["text/html"].startswith(
        '<progress value="5" max="5"></progress> <code>svfl: round 5/5, epoch 5, training loss '
    )
    assert all(part in last["text/plain"] for part in ("loss ", "accuracy ", "up ", "down ", "left "))
    assert capsys.readouterr() == ("", "")
    output.shown.clear()
    tw.train(build(list(range(12))), callbacks=[])
    assert not output.shown


def test_ipython_on_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not is_notebook()
