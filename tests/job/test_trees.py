"""Boosted trees in job files: a top model that begins at the base rate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thinwire as tw
from job.small import write_job
from thinwire.engine.models import BiasTop
from thinwire.job.job_loader import load_job
from thinwire.job.party_view import read_party_view

BIAS = ['label_party.top={name="bias_top"}', "party.bank.model.width=1", "party.shop.model.width=1"]
BINARY = [*BIAS, "label_party.loss=binary_cross_entropy"]


def bias_of(party: tw.LabelParty) -> torch.Tensor:
    assert isinstance(party.top, BiasTop)
    return party.top.bias.detach()


@pytest.mark.parametrize("weights", [[], ["label_party.class_weights=[1, 3]"]], ids=["alike", "weighted"])
def test_a_bias_begins_at_the_labels_base_rate_in_one_process_and_over_the_network(
    tmp_path: Path, weights: list[str]
) -> None:
    path = write_job(tmp_path)
    job = load_job(path, [*BINARY, *weights])
    ill = job.label_party.labels.double().mean() * (3 if weights else 1)
    well = 1 - job.label_party.labels.double().mean()
    torch.testing.assert_close(bias_of(job.label_party), (ill / well).log().float()[None])
    own = read_party_view(path, "clinic", [*BINARY, *weights])
    party = own.build_label_party(own.load_label_data(), {"bank": 1, "shop": 1})
    assert torch.equal(bias_of(party), bias_of(job.label_party))


@pytest.mark.parametrize(
    "recipe", ["recipe.labels='shared'", "recipe.defence={name='LabelDP',epsilon=1}"], ids=["shared", "LabelDP"]
)
def test_a_bias_begins_at_0_where_others_build_it_or_labels_are_covered(tmp_path: Path, recipe: str) -> None:
    job = load_job(write_job(tmp_path), [*BINARY, recipe])
    assert bias_of(job.label_party).tolist() == [0]
