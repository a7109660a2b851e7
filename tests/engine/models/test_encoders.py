"""Encoders: fitted to a party's own rows without labels, in steps whose bits they keep to."""

from __future__ import annotations

import pytest
import torch

import thinwire as tw
from thinwire.base.errors import BadParameter
from thinwire.engine.compress import Identity, StdGrid
from thinwire.engine.models.encoders import count_bits, find_quantiles, measure_entropy
from thinwire.engine.wire.codec import encode

NAN = float("nan")


def correlated_rows(rows: int = 2000) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 3, generator=rng) * torch.tensor([3.0, 2.0, 1.0])
    return hidden @ torch.randn(3, 8, generator=rng) + 0.3 * torch.randn(rows, 8, generator=rng) + 7


def test_directions_are_those_of_a_singular_value_decomposition() -> None:
    x = correlated_rows()
    encoder = tw.learners.PrincipalDirections(8, width=3, bits_per_row=30)
    encoder.fit(x)
    _, _, vectors = torch.linalg.svd((x - x.mean(0)).double(), full_matrices=False)
    for mine, theirs in zip(encoder.basis.double().T, vectors, strict=False):
        assert abs(float(torch.nn.functional.cosine_similarity(mine, theirs, dim=0))) == pytest.approx(1, abs=1e-6)
    lengths = encoder.basis.norm(dim=0)
    assert torch.allclose(lengths, lengths[0], rtol=1e-5)  # one step for all of them
    assert encoder(x).mean(0).abs().max() < 1e-2


@pytest.mark.parametrize("bits", [4.0, 7.0, 10.0])
def test_rows_take_the_bits_that_were_asked_for_and_no_more(bits: float) -> None:
    x = correlated_rows(20_000)
    encoder = tw.learners.PrincipalDirections(8, width=6, bits_per_row=bits)
    encoder.fit(x)
    codes = encoder(x)
    entropy = sum(measure_entropy(column) for column in codes.round().T)
    assert 0.8 * bits < entropy <= bits  # a step that drops a direction leaves some bits over
    body = encode(StdGrid(1.0, scale=1.0).compress(codes, torch.Generator()), "small")
    assert 8 * len(body) < bits * len(x) * 1.05 + 8 * 200  # the coder's tables and the frame of symbols
    assert 8 * len(body) < 8 * len(encode(Identity().compress(codes, torch.Generator()), "small")) / 4


def test_directions_that_hardly_vary_are_left_out() -> None:
    x = correlated_rows()
    encoder = tw.learners.PrincipalDirections(8, width=8, bits_per_row=6)
    encoder.fit(x)
    used = encoder.basis.norm(dim=0) > 0
    assert 1 <= int(used.sum()) < 8
    assert not encoder(x)[:, ~used].any()
    assert count_bits(x.double(), 1e9) == 0


def test_a_constant_table_is_encoded_as_zeros() -> None:
    encoder = tw.learners.PrincipalDirections(3)
    encoder.fit(torch.full((10, 3), 4.0))
    assert not encoder(torch.full((2, 3), 4.0)).any()


def test_bins_are_quantiles_and_gaps_have_their_own() -> None:
    x = torch.cat([torch.arange(100.0)[:, None], torch.ones(100, 1)], dim=1)
    x[::10, 1] = NAN
    encoder = tw.learners.Bins(2, bins=4)
    encoder.fit(x)
    codes = encoder(x)
    assert codes[:, 0].unique(return_counts=True)[1].tolist() == pytest.approx([25] * 4, abs=1)
    assert bool((codes[:, 0].diff() >= 0).all())
    assert codes[:, 1].unique().tolist() == [-1, 0]
    assert encoder(torch.tensor([[-1e9, 1.0], [1e9, 1.0]]))[:, 0].tolist() == [0, 3]


def test_categories_are_numbered_by_frequency_and_rare_ones_share_the_last() -> None:
    column = torch.tensor([2.0] * 5 + [0.0] * 3 + [3.0] * 2 + [1.0])
    encoder = tw.learners.Bins(2, bins=3, fields_vocab=[4])
    encoder.fit(torch.stack([column, torch.arange(11.0)], dim=1))
    unseen = torch.tensor([[2.0, 0], [0.0, 0], [3.0, 0], [1.0, 0], [9.0, 0], [NAN, 0]])
    assert encoder(unseen)[:, 0].tolist() == [0, 1, 2, 2, 2, 2]


def test_a_row_has_one_code_whichever_rows_it_comes_with() -> None:
    x = correlated_rows(100)
    for encoder in (tw.learners.PrincipalDirections(8, 4), tw.learners.Bins(8)):
        encoder.fit(x)
        alone = torch.cat([encoder(row[None]).round() for row in x])
        assert torch.equal(alone, encoder(x).round())


def test_saved_and_loaded_they_encode_alike() -> None:
    x = correlated_rows(100)
    for encoder, fresh in ((tw.learners.PrincipalDirections(8, 4), tw.learners.PrincipalDirections(8, 4)),):
        encoder.fit(x)
        fresh.load_state_dict(encoder.state_dict())
        assert bool(fresh.fitted)
        assert torch.equal(fresh(x), encoder(x))


def test_quantiles_of_no_values_are_none() -> None:
    assert len(find_quantiles(torch.zeros(0), 8)) == 0


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: tw.learners.PrincipalDirections(0), "in_features"),
        (lambda: tw.learners.PrincipalDirections(4, bits_per_row=0), "bits_per_row"),
        (lambda: tw.learners.PrincipalDirections(10**6), "in_features"),
        (lambda: tw.learners.Bins(2, bins=1), "bins"),
        (lambda: tw.learners.Bins(1, fields_vocab=[2, 2]), "fields_vocab"),
    ],
)
def test_bad_parameters_are_named(build: object, names: str) -> None:
    with pytest.raises(BadParameter, match=names):
        build()  # type: ignore[operator]
