"""The formulas of the papers, each against a naive twin or a statistic of its own."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from every import generator
from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.compress import (
    QSGD,
    Cast,
    Codebook,
    DiminishingError,
    HexLattice,
    Hint,
    Identity,
    Keystream,
    PoissonBinomial,
    RandK,
    Refining,
    RowScale,
    Sign,
    StdGrid,
    Then,
    TopK,
    Uniform,
)
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.sparse import largest_indices
from thinwire.engine.compress.symbols import (
    Columns,
    Counts,
    Dithered,
    Entries,
    Lattice,
    Levels,
    Sampled,
    Sparse,
    UniformGrid,
    Zeros,
)


def test_top_k_keeps_k_values_of_the_whole_message_exactly() -> None:
    x = torch.randn(300, 100, generator=generator())
    kept = TopK(0.01).compress(x, generator()).to_tensor()
    assert int((kept != 0).sum()) == 300
    order = x.abs().flatten().argsort(descending=True)[:300]
    expected = torch.zeros(30000)
    expected[order] = x.flatten()[order]
    assert torch.equal(kept.flatten(), expected)


def test_top_k_of_rows_keeps_k_values_of_each_row_and_contracts_by_k_of_the_width() -> None:
    x = torch.randn(40, 9, generator=generator()) * torch.logspace(-6, 6, 40)[:, None]
    symbols = TopK(3 / 9, scope="row").compress(x, generator())
    kept = symbols.to_tensor()
    places = x.abs().topk(3, dim=1).indices
    assert torch.equal(kept, torch.zeros_like(x).scatter(1, places, x.gather(1, places)))
    assert bool(((x - kept).square().sum(dim=1) <= (1 - 3 / 9) * x.square().sum(dim=1)).all())
    assert TopK(3 / 9, scope="row").contraction((40, 9)) == 3 / 9
    assert isinstance(symbols, Sparse)
    equal = TopK(0.5, scope="row").compress(torch.ones(2, 4), generator()).to_tensor()
    assert equal.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]


def test_top_k_keeps_one_value_at_least() -> None:
    kept = TopK(0.001).compress(torch.tensor([1.0, -3.0, 2.0]), generator()).to_tensor()
    assert kept.tolist() == [0.0, -3.0, 0.0]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 60), st.sampled_from([1, 700]))
def test_the_largest_indices_are_those_of_a_stable_sort(weights: list[int], count: int, copies: int) -> None:
    array = np.array(weights * copies, dtype=np.float32)
    count = min(count * copies, array.size)
    expected = np.sort(np.argsort(-array, kind="stable")[:count])
    assert np.array_equal(largest_indices(array, count), expected)


@pytest.mark.parametrize("fraction", [0.0001, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("shape", ["normal", "sorted", "equal", "clustered"])
def test_the_sampled_threshold_selects_exactly(fraction: float, shape: str) -> None:
    values = np.abs(np.random.default_rng(0).standard_normal(100_000)).astype(np.float32)
    if shape == "sorted":
        values.sort()
    elif shape == "equal":
        values[:] = 1
    elif shape == "clustered":
        values[:50_000] = 0
    count = int(fraction * values.size)
    assert np.array_equal(largest_indices(values, count), np.sort(np.argsort(-values, kind="stable")[:count]))


def test_top_k_by_derivative_keeps_where_the_derivative_is_large() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    hint = Hint(derivative=torch.tensor([[0.1, -9.0, 0.2, 0.3]]))
    assert TopK(0.25, select="derivative").compress(x, generator(), hint).to_tensor().tolist() == [[0, 2.0, 0, 0]]
    assert TopK(0.25, select="derivative").compress(x, generator()).to_tensor().tolist() == [[0, 0, 0, 4.0]]
    with pytest.raises(BadTensor, match="derivative has shape"):
        TopK(0.25, select="derivative").compress(x, generator(), Hint(derivative=torch.ones(3, 4)))


def test_top_k_by_columns_keeps_whole_columns_and_one_index_set() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    hint = Hint(derivative=torch.tensor([[5.0, 0.0, -1.0], [5.0, 0.1, -1.0], [0.0, 0.0, 0.0]]))
    symbols = TopK(0.7, select="columns").compress(x, generator(), hint)
    assert isinstance(symbols, Columns)
    assert symbols.columns.tolist() == [0, 2]
    assert symbols.to_tensor().tolist() == [[1.0, 0, 3.0], [4.0, 0, 6.0]]
    with pytest.raises(BadTensor, match="not 3 columns"):
        TopK(0.5, select="columns").compress(x, generator(), Hint(derivative=torch.ones(2, 4)))


def test_rand_k_sends_a_seed_and_keeps_each_place_alike_often() -> None:
    x = torch.ones(10, 10)
    counts = torch.zeros(10, 10)
    rng = generator()
    for _ in range(2000):
        symbols = RandK(0.3).compress(x, rng)
        assert isinstance(symbols, Sampled)
        counts += symbols.to_tensor()
    assert int(counts.sum()) == 2000 * 30
    assert float((counts - 600).abs().max()) < 5 * sqrt(2000 * 0.3 * 0.7)


@pytest.mark.parametrize(("given_as", "s"), [({"bits": 1}, 1), ({"bits": 3}, 7), ({"levels": 8}, 8)])
def test_qsgd_is_the_papers_formula(given_as: dict[str, int], s: int) -> None:
    x = torch.randn(50, 4, generator=generator())
    d, norm = 200, float(x.double().norm())
    tau = 1 + min(d / s**2, sqrt(d) / s)
    rng = generator()
    compressor = QSGD(**given_as)
    decoded = torch.stack([compressor.compress(x, rng).to_tensor() for _ in range(4000)]).double()
    unit = norm / (s * tau)
    codes = decoded[0] / unit
    assert torch.allclose(codes, codes.round(), atol=1e-5)
    floor = (s * x.double().abs() / norm).floor() * x.sign()
    assert bool(((codes.round() - floor).abs() <= 1).all())
    # E C(x) = x / tau; each value's deviation is at most half a level
    deviation = unit / 2 / sqrt(4000)
    assert float((decoded.mean(dim=0) - x / tau).abs().max()) < 5 * deviation
    assert compressor.contraction((50, 4)) == pytest.approx(1 / tau)


def test_qsgd_of_zeros_is_zeros() -> None:
    assert QSGD(bits=2).compress(torch.zeros(3, 3), generator()) == Zeros((3, 3))


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12])
def test_uniform_without_dither_gives_the_middle_of_equal_bins(bits: int) -> None:
    x = torch.linspace(-3, 5, 997)  # no point but the last on the edge of a bin
    symbols = Uniform(bits, dither=False).compress(x, generator())
    assert isinstance(symbols, Levels)
    width = 8 / 2**bits
    expected = np.minimum(np.floor((x.double().numpy() + 3) / width), 2**bits - 1)
    assert np.array_equal(symbols.codes, expected)
    decoded = symbols.to_tensor().double().numpy()
    assert np.allclose(decoded, -3 + (symbols.codes + 0.5) * width, rtol=1e-6, atol=1e-6)
    assert float(np.abs(decoded - x.numpy()).max()) <= width / 2 * (1 + 1e-5)


@pytest.mark.parametrize("bits", [1, 2, 4, 10])
def test_uniform_with_dither_has_an_error_independent_of_the_message(bits: int) -> None:
    x = torch.linspace(-1, 1, 200_001)
    compressor = Uniform(bits)
    symbols = compressor.compress(x, generator())
    assert isinstance(symbols, Dithered)
    assert int(symbols.codes.max()) <= 2**bits - 1
    error = (symbols.to_tensor().double() - x.double()).numpy()
    step = 2 / (2**bits - 1)
    assert np.abs(error).max() <= step / 2 * (1 + 1e-4)
    assert np.mean(error**2) == pytest.approx(step**2 / 12, rel=0.02)
    assert abs(np.mean(error)) < 5 * step / sqrt(12 * error.size)
    assert abs(np.corrcoef(error, x.numpy())[0, 1]) < 0.012


def test_uniform_uses_known_bounds_and_refuses_what_lies_outside() -> None:
    symbols = Uniform(1, dither=False, bounds=(0, 1)).compress(torch.tensor([0.2, 0.4]), generator())
    assert symbols.to_tensor().tolist() == [0.25, 0.25]
    with pytest.raises(BadTensor, match=r"value 1\.5 lies outside the bounds \(0, 1\); widen them"):
        Uniform(1, bounds=(0, 1)).compress(torch.tensor([0.2, 1.5]), generator())


@pytest.mark.parametrize("bits", [2, 3.5])
def test_the_hexagonal_lattice_has_its_known_error(bits: float) -> None:
    x = torch.rand(400, 500, generator=generator())
    cell = 4.0**-bits * float(x.max() - x.min()) ** 2
    error = (HexLattice(bits).compress(x, generator(1)).to_tensor().double() - x.double()).numpy()
    assert np.mean(error**2) == pytest.approx(5 / (36 * sqrt(3)) * cell, rel=0.01)
    pairs = (error.reshape(-1, 2) ** 2).sum(axis=1)
    assert pairs.max() <= 2 / (3 * sqrt(3)) * cell * (1 + 1e-4)
    assert pairs.max() >= 0.97 * 2 / (3 * sqrt(3)) * cell  # the covering radius is reached, not only bounded


def test_the_nearest_lattice_point_is_the_nearest_of_all() -> None:
    x = torch.rand(2000, generator=generator())
    symbols = HexLattice(1.5, dither=False).compress(x, generator())
    low, high = float(x.min()), float(x.max())
    distance = (high - low) * sqrt(2 / sqrt(3)) * 2**-1.5
    rows, columns = np.meshgrid(np.arange(-6, 7), np.arange(-6, 7))
    points = np.stack([(columns + (rows % 2) / 2) * distance, rows * distance * sqrt(3) / 2], axis=-1).reshape(-1, 2)
    points += (low + high) / 2
    pairs = x.double().numpy().reshape(-1, 2)
    nearest = np.min(np.linalg.norm(pairs[:, None] - points[None], axis=2), axis=1)
    reached = np.linalg.norm(symbols.to_tensor().double().numpy().reshape(-1, 2) - pairs, axis=1)
    assert np.allclose(reached, nearest, atol=1e-6)


def test_the_lattice_beats_the_square_grid_by_four_percent_at_equal_cells() -> None:
    x = torch.rand(600, 500, generator=generator())
    span = float(x.max() - x.min())
    hexagonal = (HexLattice(3).compress(x, generator(1)).to_tensor() - x).double().square().mean()
    square = (span / 2**3) ** 2 / 12
    assert float(hexagonal) / square == pytest.approx(0.0802 * 12, rel=0.01)


def test_an_odd_last_value_of_a_lattice_message_comes_back() -> None:
    x = torch.randn(3, 5, generator=generator())
    symbols = HexLattice(6).compress(x, generator())
    assert isinstance(symbols, Lattice)
    assert symbols.rows.size == 8
    assert float((symbols.to_tensor() - x).abs().max()) < 0.1


def test_std_grid_rounds_to_steps_of_the_deviation() -> None:
    x = torch.randn(100, 30, generator=generator()) * 7 + 3
    symbols = StdGrid(0.5).compress(x, generator())
    assert isinstance(symbols, UniformGrid)
    assert symbols.step == pytest.approx(0.5 * float(x.double().std(correction=0)), rel=1e-6)
    assert torch.allclose(symbols.to_tensor(), (x / symbols.step).round() * symbols.step, atol=1e-4)


def test_std_grid_of_a_constant_message_uses_its_root_mean_square() -> None:
    symbols = StdGrid(1).compress(torch.full((4, 4), -5.0), generator())
    assert isinstance(symbols, UniformGrid)
    assert symbols.step == pytest.approx(5.0)
    assert torch.equal(symbols.to_tensor(), torch.full((4, 4), -5.0))
    nearly = 1000 + torch.randn(2000, generator=generator()) * 0.1
    step = StdGrid(1).compress(nearly, generator()).step  # type: ignore[attr-defined]
    assert step == pytest.approx(1000, rel=1e-3)


def test_std_grid_of_zeros_is_a_symbol_of_its_own() -> None:
    assert StdGrid(2, stochastic=True).compress(torch.zeros(2, 2), generator()) == Zeros((2, 2))


def test_std_grid_takes_a_given_scale_and_refuses_too_small_a_step() -> None:
    assert StdGrid(2, scale=3.0).compress(torch.tensor([7.0, -8.0]), generator()).to_tensor().tolist() == [6.0, -6.0]
    with pytest.raises(BadTensor, match=r"over 2\^31 steps"):
        StdGrid(1, scale=1e-12).compress(torch.tensor([7.0]), generator())


@pytest.mark.parametrize("top", [1, 3, 7, 15])
def test_std_grid_of_the_largest_value_has_levels_at_zero_and_both_ends(top: int) -> None:
    x = torch.arange(-2000, 2001)[:, None] / 1e9  # as derivatives of a batch's mean are
    symbols = StdGrid(1 / top, stochastic=True, scale="largest").compress(x, generator())
    assert isinstance(symbols, UniformGrid)
    assert (int(symbols.codes.min()), int(symbols.codes.max())) == (-top, top)
    decoded = symbols.to_tensor()
    assert decoded[[0, 2000, 4000], 0].tolist() == pytest.approx(x[[0, 2000, 4000], 0].tolist())
    assert float((decoded - x).abs().max()) <= float(x.max()) / top * (1 + 1e-5)


@pytest.mark.parametrize(
    "compressor",
    [StdGrid(4, stochastic=True), StdGrid(1 / 3, stochastic=True, scale="largest"), RowScale(3, stochastic=True)],
    ids=str,
)
def test_stochastic_rounding_is_right_on_average(compressor: StdGrid | RowScale) -> None:
    x = torch.randn(20, 10, generator=generator())
    rng = generator(1)
    draws = torch.stack([compressor.compress(x, rng).to_tensor() for _ in range(4000)]).double()
    deviation = draws.std(dim=0) / sqrt(4000)
    assert bool(((draws.mean(dim=0) - x).abs() <= 5 * deviation + 1e-6).all())


def test_row_scale_is_exact_at_each_rows_largest_value() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5], [30.0, 10.0, 0.0], [0.0, 0.0, 0.0]])
    decoded = RowScale(3).compress(x, generator()).to_tensor()  # levels -3 .. 3
    assert decoded[0].tolist() == pytest.approx([4 / 3, -2.0, 2 / 3])
    assert decoded[1].tolist() == pytest.approx([30.0, 10.0, 0.0])
    assert decoded[2].tolist() == [0.0, 0.0, 0.0]


def test_a_codebook_of_few_values_is_exact_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    leaves = np.unique(rng.normal(size=500).astype(np.float32))[:254]
    for levels in (4, 31, 64, 256):
        book = np.concatenate([leaves[: levels - 2], np.array([-0.0, 0.0], np.float32)])
        x = torch.from_numpy(rng.choice(book, (3000, 2)))
        symbols = Codebook(levels).compress(x, generator())
        assert isinstance(symbols, Entries)
        assert symbols.to_tensor().numpy().tobytes() == x.numpy().tobytes()
        assert symbols.sizes.tolist() == [levels, levels]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=256, unique=True))
def test_any_few_values_are_told_apart(patterns: list[int]) -> None:
    values = np.array(patterns, np.uint32).view(np.float32)
    x = torch.from_numpy(np.where(np.isfinite(values), values, np.float32(0)))
    assert Codebook(256).compress(x, generator()).to_tensor().numpy().tobytes() == x.numpy().tobytes()


def test_a_codebook_of_many_values_rounds_to_the_nearest_of_its_levels() -> None:
    x = torch.randn(20_000, 1, generator=generator())
    symbols = Codebook(16).compress(x, generator())
    assert symbols.sizes.tolist() == [16]
    nearest = (x - torch.from_numpy(symbols.values)).abs().min(dim=1).values
    error = (symbols.to_tensor() - x).abs().flatten()
    assert torch.allclose(error, nearest, atol=1e-6)
    width = float(x.max() - x.min()) / 16
    assert float(error.square().mean()) < 0.9 * width**2 / 12  # better than as many equal steps


def test_values_that_differ_by_rounding_alone_are_one_entry() -> None:
    rng = np.random.default_rng(0)
    before, leaves = rng.normal(size=5000).astype(np.float32), rng.normal(size=31).astype(np.float32)
    tree = leaves[rng.integers(0, 31, 5000)]
    x = torch.from_numpy((before + tree) - before)  # what error feedback sends; over a thousand different floats
    symbols = Codebook().compress(x, generator())
    assert symbols.sizes.tolist() == [31]
    assert float((symbols.to_tensor() - x).abs().max()) < 1e-6
    steps = torch.linspace(-1, 1, 200_000)  # each a rounding away from the next, but all of them far apart
    assert Codebook().compress(steps, generator()).sizes.tolist() == [64]


def test_sign_sends_the_mean_magnitude() -> None:
    decoded = Sign().compress(torch.tensor([1.0, -2.0, 0.0, 5.0]), generator()).to_tensor()
    assert decoded.tolist() == [2.0, -2.0, 2.0, 2.0]


@pytest.mark.parametrize(("trials", "beta", "bound"), [(1, 0.25, 1.0), (4, 0.05, 1.0), (16, 0.15, 3.0)])
def test_poisson_binomial_counts_are_binomial(trials: int, beta: float, bound: float) -> None:
    levels = torch.tensor([-1.0, -0.5, 0.0, 0.7, 1.0]) * bound
    x = levels.repeat(20000, 1)
    symbols = PoissonBinomial(trials, beta, bound).compress(x, generator())
    assert isinstance(symbols, Counts)
    counts = symbols.counts.reshape(-1, 5).astype(np.float64)
    chance = 0.5 + beta * levels.double().numpy() / bound
    assert np.abs(counts.mean(axis=0) - trials * chance).max() < 5 * sqrt(trials / 4 / 20000)
    variance = trials * chance * (1 - chance)
    assert np.allclose(counts.var(axis=0), variance, rtol=0.06)
    decoded = symbols.to_tensor().double().mean(dim=0)
    assert torch.allclose(decoded, levels.double(), atol=5 * bound / (2 * beta * sqrt(trials * 20000)))


def test_poisson_binomial_sums_decode_as_the_paper_says() -> None:
    counts = Counts((1,), np.array([9]), 16, trials=4, beta=0.2, bound=2.0, parties=3)
    assert counts.to_tensor().item() == pytest.approx(2.0 / (0.2 * 4) * (9 - 4 * 3 / 2))


def test_poisson_binomial_cuts_values_off_at_its_bound() -> None:
    """A refusal would tell others a value; with the same bits the outermost value gives the same counts."""
    far, edge = (PoissonBinomial(4, 0.1).compress(torch.full((99,), x), generator()) for x in (-1e9, -1.0))
    assert far == edge


def test_cast_rounds_as_torch_does_and_refuses_what_does_not_fit() -> None:
    x = torch.randn(50, generator=generator()) * 100
    assert torch.equal(Cast("float16").compress(x, generator()).to_tensor(), x.half().float())
    assert torch.equal(Cast("bfloat16").compress(x, generator()).to_tensor(), x.bfloat16().float())
    with pytest.raises(BadTensor, match=r"1e\+06 does not fit float16; use Cast\('bfloat16'\)"):
        Cast("float16").compress(torch.tensor([1e6]), generator())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_identity_keeps_every_bit_and_the_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(5, 7, generator=generator()).to(dtype)
    decoded = Identity().compress(x, generator()).to_tensor()
    assert decoded.dtype == dtype
    assert torch.equal(decoded, x)


def test_then_quantises_only_what_was_kept() -> None:
    x = torch.randn(100, 10, generator=generator())
    symbols = Then(TopK(0.1), Sign()).compress(x, generator())
    assert isinstance(symbols, Sparse)
    kept = TopK(0.1).compress(x, generator()).to_tensor()
    expected = kept.sign() * float(kept.abs().sum()) / 100
    assert torch.allclose(symbols.to_tensor(), expected)


def test_stochastic_codes_never_wrap_around() -> None:
    # The place, computed in float32, may round to one more than the float64 quotient says.
    for value, scale in ((209902.796875, 6.405920678346905), (930.0957641601562, 7.323588976756969)):
        x = torch.full((40_000,), value)
        for sign in (1, -1):
            decoded = StdGrid(1.0, stochastic=True, scale=scale).compress(sign * x, generator()).to_tensor()
            assert float((decoded - sign * x).abs().max()) <= scale * (1 + 1e-3)


def test_a_value_clamped_to_the_bound_is_within_it() -> None:
    for bound in (0.1, 0.3, 1.0):
        x = torch.randn(50, generator=generator()).clamp(-bound, bound)
        PoissonBinomial(16, 0.1, bound).compress(x, generator())
        Uniform(4, bounds=(-bound, bound)).compress(x, generator())


@pytest.mark.parametrize("beta", [0.01, 0.05, 0.1, 0.15, 0.2, 0.25])
def test_the_chance_of_a_throw_never_exceeds_what_the_accounting_assumes(beta: float) -> None:
    class Fixed(Keystream):
        """Throws that land just at the edge of what 1/2 + beta allows."""

        def words(self, count: int) -> Array:
            return np.full(count, int((0.5 + beta) * 2**32), dtype=np.uint32)

    counts = PoissonBinomial(1, beta).compress(torch.ones(3), Fixed(bytes(32))).counts
    assert counts.tolist() == [0, 0, 0]


def test_a_decoded_tensor_is_the_callers_own() -> None:
    x = torch.zeros(3)
    symbols = Identity().compress(x, generator())
    symbols.to_tensor().add_(5)
    assert symbols.to_tensor().tolist() == x.tolist() == [0, 0, 0]


def test_a_whole_number_of_scheduled_values_is_kept() -> None:
    x = torch.randn(4, 49, generator=generator())
    most = 4 * float(x.double().square().sum(dim=1).max())
    for k in range(1, 49):
        compressor = TopK(DiminishingError(most * (1 - k / 49) * (1 + 1e-9)))
        assert compressor.compress(x, generator()).indices.size == 4 * k  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("compressor", "x"),
    [
        (Then(TopK(DiminishingError(1e-3)), Uniform(2)), torch.randn(20, 20, generator=generator())),
        (Then(TopK(1.0), StdGrid(2.0)), torch.ones(3)),
        (Then(RandK(0.5), StdGrid(1, stochastic=True)), torch.randn(9, 3, generator=generator())),
    ],
    ids=str,
)
def test_a_bound_of_two_parts_is_a_bound(compressor: Then, x: torch.Tensor) -> None:
    bound = compressor.error_bound(x)
    for seed in range(30):
        assert float((compressor.compress(x, generator(seed)).to_tensor() - x).square().sum()) <= bound.worst


def test_the_default_dtype_of_torch_does_not_matter() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert Zeros((2,)).to_tensor().dtype == torch.float32
        assert TopK(0.5).compress(torch.ones(4), generator()).to_tensor().dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_cast_to_bfloat16_takes_the_largest_float() -> None:
    x = torch.tensor([torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max])
    decoded = Cast("bfloat16").compress(x, generator()).to_tensor()
    assert torch.allclose(decoded, x, rtol=2**-8)


def test_numpy_numbers_are_taken_as_plain_ones() -> None:
    assert type(StdGrid(np.float32(3)).step) is float  # type: ignore[arg-type]
    assert type(Uniform(np.int64(3)).bits) is int  # type: ignore[arg-type]
    decoded = StdGrid(np.float32(3)).compress(torch.tensor([-3e38, 3e38]), generator()).to_tensor()  # type: ignore[arg-type]
    assert bool(torch.isfinite(decoded).all())


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros([1] * 9), "8 dimensions at most, not 9"),
        (torch.eye(3).to_sparse(), "dense tensor, not torch.sparse_coo"),
    ],
)
def test_tensors_that_are_no_message_are_named(x: torch.Tensor, message: str) -> None:
    with pytest.raises(BadTensor, match=message):
        Identity().compress(x, generator())


def test_extreme_schedules_are_no_trouble() -> None:
    huge, tiny = torch.tensor([-3e38, 3e38]), torch.tensor([0.0, 1e-44])
    assert Uniform(DiminishingError(1e-300)).compress(huge, generator(), Hint(3)).bits == 16
    assert Uniform(DiminishingError(1e300)).compress(tiny, generator()).bits == 1
    assert HexLattice(DiminishingError(1e300)).compress(tiny, generator()).bits == 0
    with pytest.raises(BadParameter, match="round must be 0 or more, got -1"):
        Hint(-1)


@pytest.mark.parametrize(("shape", "trials"), [((10, 8), 65535), ((300, 300), 3), ((1,), 1)])
def test_throws_of_a_small_message_are_drawn_together_as_they_would_be_one_by_one(
    shape: tuple[int, ...], trials: int
) -> None:
    class Counting(Keystream):
        calls = 0

        def words(self, count: int) -> Array:
            self.calls += 1
            return super().words(count)

    x = torch.rand(shape, generator=generator()) * 2 - 1
    stream, naive = Counting(bytes(32)), Keystream(bytes(32))
    counts = PoissonBinomial(trials, 0.1).compress(x, stream).counts.astype(np.int64)
    assert stream.calls <= 100
    chance = 0.5 + 0.1 * x.numpy().ravel().astype(np.float64)
    for start in range(0, x.numel(), 1 << 16):
        few = slice(start, start + (1 << 16))
        thresholds = np.rint(chance[few] * 2.0**32)
        for _ in range(trials):
            counts[few] -= naive.words(len(thresholds)) < thresholds
    assert not counts.any()


def test_a_small_batch_is_rounded_finer() -> None:
    """Rounding's noise counts as rows: what a message of B rows is worth is B / (1 + noise / energy)."""
    step = Refining(8.0, 0.5)
    found = {}
    for rows in (1024, 256, 96, 32):
        x = torch.randn(rows, 16, generator=generator())
        sent = StdGrid(step, stochastic=True, least_rows=64).compress(x, generator()).to_tensor()
        noise = float((sent - x).square().mean() / x.square().mean())
        found[rows] = noise
        assert rows / (1 + noise) > 0.9 * min(64, rows)
        exact = StdGrid(0.5, stochastic=True).compress(x, generator()).to_tensor()
        assert rows > 64 or torch.equal(sent, exact)
    assert found[1024] > 3 > found[256] > 0.8 > found[96] > found[32]


def test_precision_doubles_with_the_level_down_to_the_finest() -> None:
    x = torch.randn(64, 4, generator=generator())
    steps = [StdGrid(Refining(2.0, 0.3)).compress(x, generator(), Hint(level=level)).step for level in range(5)]  # type: ignore[attr-defined]
    assert [step / steps[0] for step in steps] == pytest.approx([1, 0.5, 0.25, 0.15, 0.15])
    assert StdGrid(Refining(0.2, 0.5)).compress(x, generator()) == StdGrid(0.2).compress(x, generator())
    assert str(StdGrid(Refining(8.0, 0.5), stochastic=True)) == "StdGrid(8 to 0.5, stochastic=True)"
    with pytest.raises(BadParameter, match="least_rows applies to stochastic rounding"):
        StdGrid(1.0, least_rows=8)
    with pytest.raises(BadParameter, match="Refining: finest must be above 0"):
        Refining(1.0, 0.0)
