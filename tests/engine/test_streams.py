"""Streams: both ends stay bit-equal through the codec, and error feedback makes the error vanish."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from every import generator
from thinwire import wire
from thinwire.base.errors import (
    BadParameter,
    BadState,
    BadTensor,
    IncompatibleRecipe,
    Malformed,
    NotFinite,
    SurrogatesDiffer,
)
from thinwire.engine.compress import (
    QSGD,
    Cast,
    Codebook,
    Compressor,
    Diminishing,
    DiminishingError,
    Directions,
    HexLattice,
    Identity,
    Keystream,
    Milestones,
    PoissonBinomial,
    RandK,
    RowScale,
    Shorter,
    Sign,
    StdGrid,
    Then,
    TopK,
    Uniform,
)
from thinwire.engine.streams import Direct, ErrorFeedback, Flow, RoundSeeds, Storage, Stream

N, E = 60, 8

CONTRACTIVE: tuple[Compressor, ...] = (
    Identity(),
    TopK(0.1),
    TopK(Diminishing(0.1)),
    RandK(0.1),
    QSGD(bits=1),
    QSGD(bits=4),
    RowScale(2),
    RowScale(4),
    Sign(),
    Codebook(4),
    Then(TopK(0.2), QSGD(bits=3)),
    Then(TopK(0.3), Sign()),
    Then(RandK(0.3), RowScale(4)),
)
BOUNDED: tuple[Compressor, ...] = (
    Cast("bfloat16"),
    StdGrid(1),
    StdGrid(1.9),
    Directions(1),
    Shorter(StdGrid(1.5), Directions(0.5)),
    StdGrid(2, stochastic=True),
    StdGrid(1 / 2, stochastic=True, scale="largest"),
    RowScale(4, stochastic=True),
    Uniform(4),
    Uniform(4, dither=False),
    HexLattice(4),
    Then(TopK(0.3), Uniform(4)),
)


def flow(**changes: Any) -> Flow:
    values: dict[str, Any] = {
        "name": "bank/uplink",
        "rows": N,
        "width": E,
        "randomness": RoundSeeds(7, "bank/uplink"),
    } | changes
    return Flow(**values)


def batch(round: int, size: int = 20) -> torch.Tensor:
    """The batches of an epoch shuffle."""
    epoch, place = divmod(round, N // size)
    return torch.randperm(N, generator=generator(epoch))[place * size : (place + 1) * size]


def exchanged(sender: Stream, receiver: Stream, rows: torch.Tensor, x: torch.Tensor, round: int) -> torch.Tensor:
    body = wire.encode(sender.outgoing(rows, x, round), "small" if round % 2 else "fast")
    return receiver.incoming(rows, wire.decode(body), round)


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("scope", ["rows", "table"])
@pytest.mark.parametrize("compressor", [*CONTRACTIVE, *BOUNDED], ids=str)
def test_both_ends_stay_bit_equal_over_many_rounds(compressor: Compressor, scope: str, rounds: int) -> None:
    spec = ErrorFeedback(compressor, scope)
    sender, receiver = spec.open(flow()), spec.open(flow())
    drift = torch.randn(N, E, generator=generator(1))
    for round in range(rounds):
        table = torch.tanh(drift + 0.01 * round)
        rows = batch(round)
        received = exchanged(sender, receiver, rows, table if scope == "table" else table[rows], round)
        assert torch.equal(received, sender.tensors()["surrogate"][rows])
    assert torch.equal(sender.tensors()["surrogate"], receiver.tensors()["surrogate"])
    assert sender.digest() == receiver.digest()
    receiver.verify(sender.digest(), rounds)


@pytest.mark.parametrize("scope", ["rows", "table"])
@pytest.mark.parametrize("compressor", [*CONTRACTIVE, *BOUNDED], ids=str)
def test_the_error_goes_to_zero_on_a_converging_sequence(compressor: Compressor, scope: str) -> None:
    spec = ErrorFeedback(compressor, scope)
    sender, receiver = spec.open(flow()), spec.open(flow())
    limit = torch.randn(N, E, generator=generator(2))
    away = torch.randn(N, E, generator=generator(3))
    errors = []
    rounds, shrink = (500, 0.97) if isinstance(compressor, QSGD | RandK | Then) else (260, 0.945)
    rounds, shrink = (1200, 0.985) if isinstance(compressor, Sign) else (rounds, shrink)  # the smallest steps
    for round in range(rounds):
        table = limit + shrink**round * away
        rows = batch(round)
        symbols = sender.outgoing(rows, table if scope == "table" else table[rows], round)
        received = receiver.incoming(rows, symbols, round)
        errors.append(float((received - table[rows]).norm() / table[rows].norm()))
    assert max(errors[-30:]) < 1e-3
    assert max(errors[:30]) > 1e-3 or isinstance(compressor, (Identity, Cast, StdGrid))  # it was not there at once


def test_sums_of_trees_on_a_dyadic_grid_are_followed_exactly() -> None:
    spec = ErrorFeedback(Codebook())
    sender, receiver = spec.open(flow(rows=5000)), spec.open(flow(rows=5000))
    rows, h, rng = torch.arange(5000), torch.zeros(5000, E), generator()
    for round in range(10):
        leaves = torch.round(torch.randn(31, E, generator=rng) * 2**16) / 2**16
        h += torch.gather(leaves, 0, torch.randint(0, 31, (5000, E), generator=rng))
        assert torch.equal(exchanged(sender, receiver, rows, h, round), h)


def test_std_grid_of_step_2_may_stall_as_documented() -> None:
    stream = ErrorFeedback(StdGrid(2)).open(flow(rows=2, width=2))
    x = torch.tensor([[1.0, -1.0], [1.0, -1.0]])  # every value just one deviation from the mean
    for round in range(50):
        stream.outgoing(torch.arange(2), x, round)
    assert torch.equal(stream.tensors()["surrogate"], torch.zeros(2, 2))


def test_direct_compression_does_not_get_better() -> None:
    sender, receiver = Direct(TopK(0.1)).open(flow()), Direct(TopK(0.1)).open(flow())
    x = torch.randn(N, E, generator=generator())
    rows = torch.arange(N)
    first = exchanged(sender, receiver, rows, x, 0)
    for round in range(1, 50):
        assert torch.equal(exchanged(sender, receiver, rows, x, round), first)
    assert float((first - x).norm() / x.norm()) > 0.5
    assert sender.digest() is None
    sender.verify(None, 50)


def test_row_scope_touches_its_rows_alone() -> None:
    stream = ErrorFeedback(Identity()).open(flow())
    rows = torch.tensor([3, 41])
    stream.outgoing(rows, torch.ones(2, E), 0)
    touched = stream.tensors()["surrogate"].any(dim=1).nonzero().flatten()
    assert touched.tolist() == [3, 41]


def test_a_resumed_stream_goes_on_bit_for_bit() -> None:
    spec = ErrorFeedback(Uniform(3))
    x = torch.randn(N, E, generator=generator())
    whole = spec.open(flow())
    bodies = [wire.encode(whole.outgoing(batch(t), x[batch(t)], t)) for t in range(20)]
    first = spec.open(flow())
    for t in range(10):
        first.outgoing(batch(t), x[batch(t)], t)
    saved = {name: tensor.clone() for name, tensor in first.tensors().items()}
    second = spec.open(flow())
    second.load(saved)
    assert [wire.encode(second.outgoing(batch(t), x[batch(t)], t)) for t in range(10, 20)] == bodies[10:]
    assert second.digest() == whole.digest()


def test_ends_that_differ_stop_the_run_and_name_the_stream() -> None:
    sender, receiver = (ErrorFeedback(TopK(0.5)).open(flow()) for _ in range(2))
    rows = torch.arange(N)
    exchanged(sender, receiver, rows, torch.ones(N, E), 0)
    sender.outgoing(rows, torch.ones(N, E), 1)  # a message is lost
    with pytest.raises(
        SurrogatesDiffer, match=r"stream 'bank/uplink', round 2: our surrogate has digest [0-9a-f]{16}"
    ):
        receiver.verify(sender.digest(), 2)
    with pytest.raises(SurrogatesDiffer, match="other end's none"):
        receiver.verify(None, 2)


@pytest.mark.parametrize(
    "compressor",
    [
        TopK(0.1, select="derivative"),
        TopK(0.1, select="columns"),
        Then(TopK(0.1, select="columns"), Uniform(4)),
        PoissonBinomial(4, 0.1),
        StdGrid(2.1, stochastic=True),
        StdGrid(Milestones((0, 1), (9, 4)), stochastic=True),
        StdGrid(1.0, stochastic=True, scale="largest"),
        RowScale(2, stochastic=True),
        Uniform(1),
        Uniform(DiminishingError(1.0)),
        HexLattice(1.5),
        Then(TopK(0.1), Uniform(1)),
    ],
    ids=str,
)
def test_error_feedback_refuses_what_does_not_contract(compressor: Compressor) -> None:
    with pytest.raises(IncompatibleRecipe, match="does not shrink the remaining error") as caught:
        ErrorFeedback(compressor)
    assert "Use TopK with select='magnitude'" in str(caught.value)


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(BadParameter, match="scope must be 'rows' or 'table', got 'row'"):
        ErrorFeedback(TopK(0.1), scope="row")


def test_selection_by_derivative_looks_at_each_rows_last_visit() -> None:
    stream = Direct(TopK(0.25, select="derivative")).open(flow(rows=3, width=4))
    x = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    row = torch.tensor([1])
    assert stream.outgoing(row, x, 0).to_tensor().tolist() == [[4.0, 0, 0, 0]]  # first visit: by magnitude
    stream.observe(row, torch.tensor([[0.0, 0.0, -1.0, 0.1]]))
    assert stream.outgoing(row, x, 1).to_tensor().tolist() == [[0, 0, 2.0, 0]]
    unseen = torch.tensor([0])
    assert stream.outgoing(unseen, x, 1).to_tensor().tolist() == [[4.0, 0, 0, 0]]


def test_selection_by_columns_looks_at_the_previous_round() -> None:
    stream = Direct(TopK(0.25, select="columns")).open(flow(rows=6, width=4))
    x = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).repeat(2, 1)
    assert stream.outgoing(torch.tensor([0, 1]), x, 0).to_tensor()[0].tolist() == [4.0, 0, 0, 0]
    stream.observe(torch.tensor([0, 1]), torch.tensor([[0.0, 1.0, 0.0, -5.0]] * 2))
    assert stream.outgoing(torch.tensor([2, 3]), x, 1).to_tensor()[0].tolist() == [0, 0, 0, 1.0]


@pytest.mark.parametrize("select", ["derivative", "columns"])
def test_what_a_direct_stream_remembers_is_saved_and_loaded(select: str) -> None:
    spec = Direct(TopK(0.25, select=select))
    first, second = spec.open(flow()), spec.open(flow())
    rows, x = torch.arange(N), torch.randn(N, E, generator=generator())
    first.observe(rows, torch.randn(N, E, generator=generator(5)))
    second.load(first.tensors())
    assert first.outgoing(rows, x, 1) == second.outgoing(rows, x, 1)
    with pytest.raises(BadState, match="expected"):
        second.load({})
    wrong = {name: tensor[..., :1].double() for name, tensor in first.tensors().items()}
    with pytest.raises(BadState, match="the saved"):
        second.load(wrong)


def test_a_direct_stream_without_memory_has_no_state() -> None:
    stream = Direct(Uniform(2)).open(flow())
    stream.observe(torch.arange(2), torch.ones(2, E))
    assert stream.tensors() == {}
    stream.load({})


def test_tensors_and_symbols_of_the_wrong_shape_are_named() -> None:
    for spec in (Direct(Identity()), ErrorFeedback(Identity())):
        stream = spec.open(flow())
        with pytest.raises(BadTensor, match=r"stream 'bank/uplink': a tensor of shape \(3, 2\), expected \(3, 8\)"):
            stream.outgoing(torch.arange(3), torch.ones(3, 2), 0)
        symbols = Identity().compress(torch.ones(4, E), generator())
        with pytest.raises(Malformed, match=r"round 5: symbols of shape \(4, 8\) came in, expected \(3, 8\)"):
            stream.incoming(torch.arange(3), symbols, 5)
    with pytest.raises(BadTensor, match="expected"):
        Direct(TopK(0.1, select="columns")).open(flow()).observe(torch.arange(3), torch.ones(2, E))


def test_error_feedback_takes_float32_symbols_only() -> None:
    stream = ErrorFeedback(Identity()).open(flow())
    with pytest.raises(Malformed, match=r"torch\.float64 symbols"):
        stream.incoming(torch.arange(2), Identity().compress(torch.ones(2, E).double(), generator()), 0)


@pytest.mark.parametrize("spec", [Direct(Uniform(2)), ErrorFeedback(Uniform(2))], ids=["direct", "error feedback"])
def test_nan_is_refused_with_stream_round_and_row(spec: Direct | ErrorFeedback) -> None:
    x = torch.zeros(2, E)
    x[1, 3] = float("nan")
    with pytest.raises(
        NotFinite, match=r"stream 'bank/uplink', round 4: the tensor \[row, column\] holds NaN at \[57, 3\]"
    ):
        spec.open(flow()).outgoing(torch.tensor([12, 57]), x, 4)


def test_memory_is_said_beforehand() -> None:
    assert ErrorFeedback(TopK(0.1)).memory_bytes(60_000, 16) == 3_840_000
    assert Direct(TopK(0.1)).memory_bytes(60_000, 16) == 0
    assert Direct(TopK(0.1, select="derivative")).memory_bytes(60_000, 16) == 3_840_000


def test_randomness_depends_on_seed_stream_and_round_alone() -> None:
    def draw(seed: int, name: str, round: int) -> float:
        return float(torch.rand(1, generator=RoundSeeds(seed, name)(round)))

    assert draw(1, "a", 2) == draw(1, "a", 2)
    assert len({draw(1, "a", 2), draw(2, "a", 2), draw(1, "b", 2), draw(1, "a", 3), draw(1, "a2", 3)}) == 5


def test_noise_may_come_from_a_secret_key() -> None:
    secret = bytes(range(32))
    stream = Direct(PoissonBinomial(16, 0.2)).open(flow(randomness=lambda *_: Keystream(secret)))
    x = torch.zeros(N, E)
    assert stream.outgoing(torch.arange(N), x, 0) == stream.outgoing(torch.arange(N), x, 1)


def test_embeddings_of_any_float_dtype_are_followed() -> None:
    stream = ErrorFeedback(Identity()).open(flow())
    x = torch.randn(N, E, generator=generator()).bfloat16().requires_grad_()
    stream.outgoing(torch.arange(N), x, 0)
    assert torch.equal(stream.tensors()["surrogate"], x.detach().float())


def test_a_mapped_surrogate_follows_the_same_bits(tmp_path: Any) -> None:
    spec = ErrorFeedback(QSGD(bits=2))
    here, mapped = spec.open(flow()), spec.open(flow(storage=Storage(memory_limit_bytes=0, folder=tmp_path)))
    x = torch.randn(N, E, generator=generator())
    for t in range(30):
        assert here.outgoing(batch(t), x[batch(t)], t) == mapped.outgoing(batch(t), x[batch(t)], t)
    assert here.digest() == mapped.digest()


def test_rows_are_checked() -> None:
    for spec in (Direct(Identity()), ErrorFeedback(Identity())):
        stream = spec.open(flow())
        for rows in ([0, 1], torch.tensor([0.0, 1.0]), torch.tensor([[0, 1]]), torch.tensor([], dtype=torch.int64)):
            with pytest.raises(BadTensor, match="rows must be an int64 tensor of one dimension"):
                stream.outgoing(rows, torch.ones(2, E), 0)  # type: ignore[arg-type]
        for bad in (-1, N):
            with pytest.raises(BadTensor, match="there are 0 to 59"):
                stream.outgoing(torch.tensor([0, bad]), torch.ones(2, E), 0)
        with pytest.raises(BadTensor, match="floats, not"):
            stream.outgoing(torch.tensor([0, 1]), torch.ones(2, E, dtype=torch.int64), 0)


def test_a_bad_derivative_is_named_where_it_comes_in() -> None:
    for select in ("derivative", "columns"):
        stream = Direct(TopK(0.5, select=select)).open(flow())
        derivative = torch.zeros(2, E)
        derivative[1, 4] = float("inf")
        with pytest.raises(NotFinite, match=r"the derivative \[row, column\] holds infinity at \[31, 4\]"):
            stream.observe(torch.tensor([5, 31]), derivative)


def test_nan_in_a_whole_table_is_named_by_its_own_row() -> None:
    x = torch.zeros(N, E)
    x[0, 3] = float("nan")
    with pytest.raises(NotFinite, match=r"at \[0, 3\]"):
        ErrorFeedback(Uniform(2), scope="table").open(flow()).outgoing(torch.arange(N).flip(0), x, 0)


def test_a_peer_cannot_drive_the_surrogate_to_infinity() -> None:
    stream = ErrorFeedback(Identity()).open(flow())
    symbols = Identity().compress(torch.full((1, E), 3e38), generator())
    stream.incoming(torch.tensor([0]), symbols, 0)
    with pytest.raises(Malformed, match="round 1: the symbols leave the range of float32"):
        stream.incoming(torch.tensor([0]), symbols, 1)


def test_what_is_no_compressor_is_refused() -> None:
    for spec in (Direct, ErrorFeedback):
        with pytest.raises(BadParameter, match="compressor must be a compressor, got 'topk'"):
            spec("topk")  # type: ignore[arg-type]


def test_surrogates_are_float32_whatever_the_default() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        stream = ErrorFeedback(TopK(0.5)).open(flow())
        stream.outgoing(torch.tensor([0]), torch.ones(1, E), 0)
        assert stream.tensors()["surrogate"].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
