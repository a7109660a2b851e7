"""The papers' byte formulas, against figures that their authors' code printed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.engine.compress import QSGD, HexLattice, Identity, StdGrid, TopK, Uniform
from thinwire.engine.recipe import Recipe
from thinwire.job.registry import build_recipe
from thinwire.lab.papers.runs import PaperBytes, paper_bits

ROWS, EPOCHS, WIDTH, PARTIES = 60_000, 100, 16, 4


def job(recipe: Recipe) -> tw.Job:
    x, y = torch.zeros(6, 3), torch.arange(6) % 2
    parties = [tw.FeatureParty(f"p{k}", x, nn.Linear(3, WIDTH)) for k in range(PARTIES)]
    return tw.Job(parties, tw.LabelParty("label", y, nn.Linear(WIDTH, 10, bias=False)), recipe)


@pytest.mark.parametrize(
    ("compressor", "megabytes"),
    [
        (Identity(), 1536),
        (TopK(0.1), 154),
        (TopK(0.01), 15.4),
        (TopK(0.001), 1.5),
        (QSGD(bits=5), 288),
        (QSGD(bits=2), 144),
        (QSGD(bits=1), 96),
    ],
)
def test_efvfl_counts_as_its_authors_code_does(compressor: tw.compress.Compressor, megabytes: float) -> None:
    count = PaperBytes.of("efvfl", job(tw.methods.efvfl(compressor)))
    assert count is not None
    assert count.after(ROWS * EPOCHS, EPOCHS) / 1e6 == pytest.approx(megabytes, rel=0.03)


def test_cvfl_counts_every_embedding_and_the_top_model_to_every_party() -> None:
    shared = PaperBytes.of("cvfl", job(tw.methods.cvfl(Uniform(2), top_compressor=Uniform(2))))
    private = PaperBytes.of("cvfl", job(tw.methods.cvfl(Uniform(2), labels="private")))
    assert shared is not None
    assert private is not None
    rows, rounds = 1000, 3
    values, top = rows * PARTIES * WIDTH, rounds * WIDTH * 10
    assert shared.after(rows, rounds) == PARTIES * (values + top) * 2 / 8
    assert private.after(rows, rounds) == values * (2 + 32) / 8


def test_pbm_counts_a_masked_value_up_and_a_float_down() -> None:
    count = PaperBytes.of("pbm", job(tw.methods.pbm(16, 0.15)))
    plain = PaperBytes.of("pbm", job(tw.methods.svfl()))
    assert count is not None
    assert plain is not None
    assert count.after(10, 1) == 10 * PARTIES * WIDTH * (2 + 4 + 32) / 8
    assert plain.after(10, 1) == 10 * PARTIES * WIDTH * 64 / 8


def test_compressors_of_the_files_are_counted_too() -> None:
    """A file's numbers pass through its reader: bits of the lattice become a float there."""
    for name, bits in (("Uniform", 2), ("HexLattice", 2), ("QSGD", 2)):
        recipe = build_recipe("recipe", {"method": "cvfl", "compressor": {"name": name, "bits": bits}})
        assert paper_bits(recipe.uplink.compressor) == bits + (name == "QSGD")


def test_what_the_papers_do_not_have_is_not_counted() -> None:
    assert paper_bits(HexLattice(3)) == 3
    assert paper_bits(StdGrid(2.0)) is None
    assert PaperBytes.of("efvfl", job(tw.methods.thin())) is None
    assert PaperBytes.of(None, job(tw.methods.svfl())) is None
