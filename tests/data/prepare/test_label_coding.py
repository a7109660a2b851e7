"""Labels as classes or quantities: guessed, said, and turned back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thinwire.base.errors import BadLabels, BadState
from thinwire.data.prepare import LabelCoding


@pytest.mark.parametrize(
    ("labels", "task", "classes"),
    [
        (["yes", "no", "no"], "binary", ("no", "yes")),
        (["True", "False", "True"], "binary", ("False", "True")),
        ([1, 0, 1], "binary", ("0", "1")),
        ([1.0, 0.0, 1.0], "binary", ("0", "1")),
        ([True, False], "binary", ("false", "true")),
        (["10", "9", "2"], "multiclass", ("2", "9", "10")),
        ([1000002, 1000001], "binary", ("1000001", "1000002")),
        (["1000002", "1000001"], "binary", ("1000001", "1000002")),
        ([1000002.0, 1000001.0, -1e6], "multiclass", ("-1000000", "1000001", "1000002")),
        ([2**53 + 1, 2**53], "binary", (str(2**53), str(2**53 + 1))),
        (["007", "7.0", "8"], "binary", ("7", "8")),
        (["red", "blue", "green"], "multiclass", ("blue", "green", "red")),
        ([0.5, 1.5], "regression", ()),
        ([*range(30)], "regression", ()),
    ],
)
def test_the_task_is_guessed(labels: list[Any], task: str, classes: tuple[str, ...]) -> None:
    coding = LabelCoding.fit({"y": labels}, "y")
    assert (coding.task, coding.classes) == (task, classes)
    assert task in coding.says
    assert LabelCoding.from_json(coding.to_json()) == coding
    values = coding.apply({"y": labels})
    if task == "regression":
        assert torch.allclose(coding.in_units(values), torch.tensor(labels, dtype=torch.float32), atol=1e-5)
        assert float(values.mean()) == pytest.approx(0, abs=1e-6)
        assert coding.outputs("squared_error") == 1
    else:
        assert values.dtype == torch.int64
        assert sorted(set(values.tolist())) == list(range(len(classes)))
        names = [coding.classes[k] for k in values]
        assert torch.equal(coding.apply({"y": names}), values)
        assert coding.outputs("cross_entropy") == len(classes)
        assert coding.outputs("binary_cross_entropy") == 1


def test_classes_in_a_given_order_and_a_given_task() -> None:
    coding = LabelCoding.fit({"y": ["good", "bad"]}, "y", classes=("good", "bad"))
    assert coding.apply({"y": ["bad", "good"]}).tolist() == [1, 0]
    assert LabelCoding.fit({"y": [1, 2, 3]}, "y", "regression").task == "regression"
    assert LabelCoding.fit({"y": [*range(30)]}, "y", "multiclass").classes[:2] == ("0", "1")


def test_labels_that_are_refused() -> None:
    wrong: list[tuple[list[Any], dict[str, Any], str]] = [
        (["a", "a"], {}, "all 2 labels in 'y' are 'a'; training needs at least two classes"),
        ([1.5, 1.5], {}, "all 2 labels in 'y' are 1.5"),
        (["a", None], {}, "row 2 has no label in 'y'"),
        ([1.0, float("inf")], {}, "row 2, label 'y' is 'inf', not a finite number; correct it"),
        (["1", "2", "1e999"], {}, "row 3, label 'y' is '1e999', not a finite number"),
        ([1.5, float("nan"), 2.5], {"task": "regression"}, "row 2, label 'y' is 'nan', not a finite number"),
        (["a", "b", "c"], {"task": "binary"}, "holds 3 classes"),
        (["a", "b"], {"classes": ("a", "b", "c")}, "no training row has class 'c'"),
        (["a", "b"], {"classes": ("a", "a")}, "names one class twice"),
        ([f"x{k}" for k in range(1200)], {}, "is it the label column"),
    ]
    for labels, arguments, message in wrong:
        with pytest.raises(BadLabels, match=message):
            LabelCoding.fit({"y": labels}, "y", **arguments)
    coding = LabelCoding.fit({"y": ["a", "b"]}, "y")
    with pytest.raises(
        BadLabels, match="row 2, label 'y' is 'c', a class that no training row has; the classes are 'a', 'b'"
    ):
        coding.apply({"y": ["a", "c"]})
    with pytest.raises(BadState, match="no coding of labels"):
        LabelCoding.from_json("{}")


def test_classes_are_found_again_however_the_numbers_are_written() -> None:
    coding = LabelCoding.fit({"y": [1000000, 2000000]}, "y")
    for labels in (["1e6", "2e+06"], [1e6, 2e6], ["1000000.0", "02000000"]):
        assert coding.apply({"y": labels}).tolist() == [0, 1]
    older = coding.model_copy(update={"classes": ("1e+06", "2e+06")})  # as it was once kept
    assert older.apply({"y": [2000000, 1000000]}).tolist() == [1, 0]
    words = LabelCoding.fit({"y": ["007", "gold"]}, "y")
    assert words.classes[words.apply({"y": ["007"]})[0]] == "007"
