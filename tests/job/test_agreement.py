"""What parties compare when they meet: a difference is named by its field."""

from __future__ import annotations

from pathlib import Path

import pytest

from job.small import write_job
from thinwire.job.party_view import read_party_view
from thinwire.net.handshake import compare_agreements

SHARED = "recipe.labels='shared'"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_job(tmp_path)


def test_what_is_agreed_on(path: Path) -> None:
    own = read_party_view(path, "bank")
    agreed = own.agreement()
    assert agreed["recipe"] == own.recipe.digest()
    assert agreed["recipe.uplink"] == "ErrorFeedback"
    assert agreed["recipe.uplink.compressor"] == "TopK"
    assert agreed["recipe.uplink.compressor.fraction"] == "0.25"
    assert agreed["recipe.on_outage"] == "wait"
    assert {key: text for key, text in agreed.items() if not key.startswith("recipe")} == {
        "job.epochs": "2",
        "job.batch_size": "32",
        "job.batches": "derived",
        "job.seed": "0",
        "job.eval_every": "none",
        "job.effort": "small",
        "job.training": "raw_rows",
        "job.budget": "none",
        "job.split": "none",
        "parties": "bank, shop",
        "label_party": "clinic",
    }
    assert agreed == read_party_view(path, "shop").agreement() == read_party_view(path, "clinic").agreement()


CHANGES = [
    ("job.epochs=3", {"job.epochs"}),
    ("job.batch_size=16", {"job.batch_size"}),
    ("job.batches='announced'", {"job.batches"}),
    ("job.seed=1", {"job.seed"}),
    ("job.eval_every=2", {"job.eval_every"}),
    ("job.effort='fast'", {"job.effort"}),
    ("job.training='frozen'", {"job.training"}),
    ("recipe.compressor.fraction=0.5", {"recipe", "recipe.uplink.compressor.fraction"}),
    ("recipe.warm_start=true", {"recipe", "recipe.warm_start"}),
    ("label_party.name='hospital'", {"label_party"}),
    ("party.shop.name='kiosk'", {"parties"}),
    # Everyone's own matter:
    ("job.epochs=2.0", set()),
    ("job.metrics=['auc']", set()),
    ("job.target={metric='accuracy',value=1}", set()),
    ("job.byte_budget=10", set()),
    ("job.stop=false", set()),
    ("job.diagnostics=false", set()),
    ("optimizer.lr=0.5", set()),
    ("party.bank.model.width=8", set()),
    ("label_party.fusion='concat'", set()),
    ("label_party.top.classes=3", set()),
    ("network.wait_seconds=5", set()),
    ("link.latency_ms=5", set()),
]


@pytest.mark.parametrize(("setting", "changed"), CHANGES, ids=[setting for setting, _ in CHANGES])
def test_an_agreement_differs_in_exactly_what_was_changed(path: Path, setting: str, changed: set[str]) -> None:
    ours, theirs = read_party_view(path, "bank").agreement(), read_party_view(path, "bank", [setting]).agreement()
    assert {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)} == changed


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("label_party.fusion='concat'", {"label_party.fusion"}),
        ("label_party.loss='squared_error'", {"label_party.loss"}),
        ("label_party.class_weights=[1.0,2.0]", {"label_party.class_weights"}),
        ("label_party.top.classes=3", {"label_party.top.classes"}),
        ("label_party.top.bias=false", {"label_party.top.bias"}),
        ("label_party.top.bias=true", set()),
        ("label_party.top.name='Linear_Top'", set()),
    ],
)
def test_under_shared_labels_the_top_model_is_agreed_on(path: Path, setting: str, changed: set[str]) -> None:
    ours = read_party_view(path, "bank", [SHARED]).agreement()
    theirs = read_party_view(path, "clinic", [SHARED, setting]).agreement()
    assert {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)} == changed


@pytest.mark.parametrize(
    ("setting", "sentences"),
    [
        ("job.epochs=2", []),
        ("job.seed=1", ["job.seed is 0 at 'bank' and 1 at 'shop'"]),
        ("job.eval_every=7", ["job.eval_every is none at 'bank' and 7 at 'shop'"]),
        ("recipe.compressor.fraction=0.5", ["recipe.uplink.compressor.fraction is 0.25 at 'bank' and 0.5 at 'shop'"]),
        (
            "recipe.compressor={name='Uniform',bits=4}",
            ["recipe.uplink.compressor is TopK at 'bank' and Uniform at 'shop'"],
        ),
        (
            "recipe={method='celu',capacity=3,reuse=2}",
            [
                "recipe.name is efvfl at 'bank' and celu at 'shop'",
                "recipe.schedule is EveryBatch at 'bank' and CachedSteps at 'shop'",
                "recipe.uplink is ErrorFeedback at 'bank' and Direct at 'shop'",
                "recipe.uplink.compressor is TopK at 'bank' and Identity at 'shop'",
            ],
        ),
    ],
)
def test_differences_are_said_by_the_most_telling_field(path: Path, setting: str, sentences: list[str]) -> None:
    ours, theirs = read_party_view(path, "bank"), read_party_view(path, "shop", [setting])
    found = compare_agreements(ours.agreement(), theirs.agreement(), "bank", "shop")
    assert found == sentences


def test_a_digest_speaks_where_no_field_does() -> None:
    found = compare_agreements({"recipe": "aa"}, {"recipe": "bb"}, "bank", "shop")
    assert found == ["recipe is aa at 'bank' and bb at 'shop'"]


def test_fields_that_only_one_side_knows() -> None:
    found = compare_agreements({"a.b": "1"}, {"c": "2"}, "bank", "shop")
    assert found == ["a.b is 1 at 'bank' and not given at 'shop'", "c is not given at 'bank' and 2 at 'shop'"]


def test_what_a_peer_says_stays_on_one_short_line() -> None:
    hostile = compare_agreements(
        {"job.seed": "0"}, {"job.seed": "1\nall is well\x1b[2J", "\n": "x" * 9999}, "bank", "shop"
    )
    assert all(sentence.isprintable() and len(sentence) < 200 for sentence in hostile)
    assert "'1\\nall is well\\x1b[2J'" in "".join(hostile)
