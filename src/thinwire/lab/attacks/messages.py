"""Are the messages of a run what its guarantee is about?

The first rounds of the run are made twice, each time with another secret and from the same seed. What must be true:

    noise    counts vary as the mechanism says, around what it says, and independently: between rounds, between looks
             at one row, between parties, and between the two runs, which have nothing but the seed in common;
             that of test embeddings is looked at in their sum; so does which codes are still the true ones
    masks    what leaves a party under secure sum is uniform; so are differences between rounds and between the two
             runs, and sums and differences of two parties
    charges  a party's ledger counts every row of every message

A statistic that chance gives once in 10^9 cases refutes it. What passes may still be wrong in a way that is not here;
`list_unseen` says what was not looked at.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TypeAlias

import numpy as np
from scipy.special import chdtrc
from torch import Tensor

from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Message
from thinwire.engine.compress import Compressor, PoissonBinomial, RandomizedResponse, Symbols
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.symbols import Counts, Masked, UniformGrid
from thinwire.engine.privacy import SecureSum
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.programs.program import Observers
from thinwire.engine.protocols.evaluation import EvaluationVerdict, HeldOut
from thinwire.engine.streams import Flow, Rows
from thinwire.engine.wire.codec import decode
from thinwire.job.job import Job
from thinwire.lab.attacks.dp_release import Verdict
from thinwire.lab.attacks.views import tap_stream
from thinwire.training.simulator import SimulatedParties

Place: TypeAlias = tuple[Kind, Round]  # of a message

_ROUNDS = 32  # that are compared with one another
_MOST_ROUNDS = 512  # that are made, to see rows again in a second epoch
_DEVIATIONS, _CHANCE = 6.0, 1e-9  # of a normal variable, and how rare that is
_BINS = 256
_FEWEST = 1000  # values of a party, below which nothing is said
_FEWEST_IN_ROUND = 8 * _DEVIATIONS**2  # where half the variance is missing
_FEWEST_COINCIDENCES = 100  # of codes that stay, or do not, in two messages of this kind
_RELEASES = (Kind.WARM_START, Kind.EMBEDDING, Kind.EVALUATION, Kind.TEST)
_TESTS = "all parties' test embeddings"


@dataclass(frozen=True)
class Noise:
    """Of one sender, message by message: in units of its deviation, and what it hides."""

    drawn: list[Array] = field(default_factory=list)  # [B, E]
    values: list[Array] = field(default_factory=list)  # [B, E]
    rows: list[Array] = field(default_factory=list)  # [B]
    spreads: list[Array] = field(default_factory=list)  # what of `drawn` has a spread that its mean does not say

    def add(self, counts: Array, mechanism: PoissonBinomial | Counts, x: Sequence[Tensor], rows: Array) -> None:
        """`counts` are the sum over as many messages as `x` has embeddings."""
        values = [np.clip(one.detach().cpu().double().numpy() / mechanism.bound, -1, 1) for one in x]
        chances = [0.5 + mechanism.beta * value for value in values]
        mean, variance = (mechanism.trials * sum(each) for each in (chances, [p * (1 - p) for p in chances]))
        self.drawn.append((counts.reshape(values[0].shape) - mean) / np.sqrt(variance))
        self.values.append(np.asarray(sum(values)))
        self.rows.append(rows)
        self.spreads.append(self.drawn[-1])

    def add_responses(self, codes: Array, mechanism: RandomizedResponse, x: Tensor, rows: Array) -> None:
        """Whether each code is still the true one; nothing is said of messages with few that are, or are not."""
        values = x.detach().cpu().double().numpy()
        chance = mechanism.count_words(values.shape[1])[0] / 2.0**32
        if values.size * min(chance, 1 - chance) ** 2 < _FEWEST_COINCIDENCES:
            return
        kept = codes.reshape(values.shape) == values
        self.drawn.append((kept - chance) / np.sqrt(chance * (1 - chance)))
        self.values.append(values)
        self.rows.append(rows)


@dataclass(frozen=True)
class Transcript:
    """What each feature party sent, the noise within it, and how often it sent a row that was not charged."""

    bodies: dict[PartyName, dict[Place, Symbols]] = field(default_factory=lambda: defaultdict(dict))
    noise: dict[str, Noise] = field(default_factory=lambda: defaultdict(Noise))
    tests: dict[Place, list[Tensor]] = field(default_factory=lambda: defaultdict(list))  # embeddings, of each party
    uncharged: dict[PartyName, int] = field(default_factory=dict)

    def overhear(self, mechanism: Compressor, flow: Flow, rows: Rows, x: Tensor, symbols: Symbols, _: Round) -> None:
        """Before the masks: what the mechanism made of the embeddings."""
        noise = self.noise[flow.name.removesuffix("/uplink")]
        if isinstance(symbols, Counts):
            noise.add(symbols.counts, symbols, [x], rows.numpy())
        elif isinstance(mechanism, RandomizedResponse) and isinstance(symbols, UniformGrid):
            noise.add_responses(symbols.codes, mechanism, x, rows.numpy())

    def add_tests(self, mechanism: PoissonBinomial) -> None:
        """Noise of test embeddings is seen in their sum only."""
        for place, x in self.tests.items():
            sealed = [bodies[place] for bodies in self.bodies.values()]
            masked = [one for one in sealed if isinstance(one, Masked)]
            if len(masked) == len(x):
                total = sum(one.values.astype(np.int64) for one in masked) % masked[0].modulus
                self.noise[_TESTS].add(np.asarray(total), mechanism, x, np.arange(len(x[0])))


@dataclass(frozen=True, slots=True)
class MessageAudit:
    """What was found wrong in the messages of a run's first rounds.

    Args:
        rounds: rounds that were checked.
        values: in all messages of a party.
        wrong: one sentence per finding.

    Examples:
        >>> tw.audit.MessageAudit(rounds=3, values=96, wrong=()).wrong
        ()
    """

    rounds: int
    values: int  # in all messages of a party
    wrong: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        if self.wrong:
            return "refuted"
        return "inconclusive" if self.rounds < 2 or self.values < _FEWEST else "holds"


def audit_messages(begun: Job) -> MessageAudit | None:
    """Checks noise and masks in the messages of the first rounds; None where messages are not meant to hide anything.

    Args:
        begun: a job with the models as they were before training.

    Examples:
        >>> tw.audit.audit_messages(job) is None
        True
    """
    if not hides_messages(begun):
        return None
    first, second = (record_messages(begun, secrets.token_bytes(32)) for _ in range(2))
    bodies = next(iter(first.bodies.values()))
    rounds = {place: one for place, one in bodies.items() if place[0] is Kind.EMBEDDING}
    values = sum(int(np.prod(one.shape)) for one in rounds.values())
    unpaid = [f"{name} is not charged for {rows} rows it sends" for name, rows in first.uncharged.items() if rows]
    is_masked = isinstance(begun.recipe.aggregation, SecureSum)
    masks = _doubts_on_masks(first, second) if is_masked else ()
    doubts = (*_doubts_on_noise(first, second), *masks, *unpaid)
    return MessageAudit(len(rounds), values, tuple(dict.fromkeys(doubts)))


def list_unseen(job: Job, messages: MessageAudit | None) -> Iterator[str]:
    """What an audit with these messages did not look at."""
    rounds = job.limit_rounds(job.check()).rounds
    if messages is not None:
        if messages.rounds < rounds:
            yield f"rounds {messages.rounds + 1} to {rounds}"
        if messages.values < _FEWEST_IN_ROUND * messages.rounds:
            yield f"single rounds: {messages.values // messages.rounds} values are too few to see half the noise gone"
        yield "single rows of a message, noise that training and test embeddings share"
        if job.recipe.uplink.compressor.protects_alone:
            yield "messages in which few codes are replaced, or few stay; the noise of test rows' codes"
        yield "predictions, the run's own secret, charges on its disk"
    if not isinstance(job.recipe.defence, NoDefence):
        yield f"the noise of {job.recipe.defence}, but for what the attacks on derivatives measure"
    if isinstance(job.training, DPBottom):
        yield "the noise of private steps"


def hides_messages(job: Job) -> bool:
    """Whether noise or masks are to hide what a feature party sends."""
    return job.recipe.is_charged or isinstance(job.recipe.uplink.compressor, PoissonBinomial)


def record_messages(begun: Job, secret: bytes) -> Transcript:
    """The first rounds of the run, made anew under this secret."""
    job, found, mechanism = begun.duplicate(), Transcript(), begun.recipe.uplink.compressor
    rounds = job.divide_rows()
    enough = _ROUNDS if 2 * rounds.rounds_per_epoch > _MOST_ROUNDS else max(_ROUNDS, 2 * rounds.rounds_per_epoch)
    job.epochs = min(job.epochs, rounds.epoch(enough))
    if isinstance(mechanism, PoissonBinomial | RandomizedResponse):
        ear = partial(found.overhear, mechanism)
        job.recipe = replace(job.recipe, uplink=tap_stream(job.recipe.uplink, "outgoing", ear))
    parties = SimulatedParties(job, Observers(lambda _: EvaluationVerdict(), lambda _: None), secret)
    programs = {program.context.me: program for program in parties.features}
    sent = {name: np.zeros(job.all_rows, np.int64) for name in programs}
    evaluated = job.rows + (job.validation_rows or job.test_rows)
    tables = {Kind.WARM_START: slice(0, job.rows), Kind.EVALUATION: slice(job.rows, evaluated)}
    tables[Kind.TEST] = slice(evaluated, None)
    held_out = {Kind.EVALUATION: HeldOut.VALIDATION if job.validation_rows else HeldOut.TEST, Kind.TEST: HeldOut.TEST}

    def hear(message: Message) -> None:
        if message.sender in programs and message.kind in _RELEASES and message.body:
            found.bodies[message.sender][message.kind, message.round] = decode(message.body)
            sent[message.sender][tables.get(message.kind) or parties.batches.rows(message.round).numpy()] += 1
            rows = held_out.get(message.kind)
            test = None if rows is None else programs[message.sender].bottom.embed_held_out(rows)
            if test is not None:
                found.tests[message.kind, message.round].append(test)

    parties.simulation.on_message = hear
    parties.run()
    lacking = {name: sent[name] - one.ledger.state()["releases"] for name, one in parties.spending.items()}
    found.uncharged.update({name: int(rows.clip(min=0).sum()) for name, rows in lacking.items()})
    if isinstance(mechanism, PoissonBinomial):
        found.add_tests(mechanism)
    return found


# Noise ---------------------------------------------------------------------------------------------------------


def _doubts_on_noise(first: Transcript, second: Transcript) -> Iterator[str]:
    for sender, noise in first.noise.items():
        if not noise.drawn:
            continue
        drawn = _join(noise.drawn)
        if noise.spreads and any(_is_odd_spread(z) for z in (*noise.spreads, _join(noise.spreads))):
            yield f"the noise of {sender} does not have the variance of its mechanism"
        if abs(drawn.mean()) * np.sqrt(drawn.size) > _DEVIATIONS or _are_related(drawn, _join(noise.values)):
            drew = "counts" if noise.spreads else "codes"
            yield f"the {drew} of {sender} do not have the mean of their mechanism"
        if any(_are_related(one, other) for one, other in combinations(noise.drawn[:_ROUNDS], 2)):
            yield f"the noise of {sender} repeats from round to round"
        if _are_related(*_looks_at_rows(noise)):
            yield f"the noise of {sender} repeats when a row is used again"
        if second.noise[sender].drawn and _are_related(drawn, _join(second.noise[sender].drawn)):
            yield f"the noise of {sender} can be computed from the training seed"
    for one, other in combinations([sender for sender, noise in first.noise.items() if noise.drawn], 2):
        if _are_related(_join(first.noise[one].drawn), _join(first.noise[other].drawn)):
            yield f"the noise of {one} and that of {other} are correlated"


def _join(messages: Sequence[Array]) -> Array:
    return np.concatenate([one.ravel() for one in messages])


def _is_odd_spread(noise: Array) -> bool:
    """Squares of standardised noise are 1 on average; how they scatter is taken from themselves."""
    squares = noise.ravel() ** 2
    error = max(float(squares.std()), 0.05) / np.sqrt(squares.size)
    return bool(abs(squares.mean() - 1) > _DEVIATIONS * error)


def _are_related(one: Array, other: Array) -> bool:
    """Correlated, beyond chance; of arrays that differ in length, the shorter one counts."""
    size = min(one.size, other.size)
    a, b = one.ravel()[:size], other.ravel()[:size]
    if size < 20 or not a.std() or not b.std():
        return False
    return bool(abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(size) > _DEVIATIONS)


def _looks_at_rows(noise: Noise) -> tuple[Array, Array]:
    """The noise of every row at its first look and at its second one."""
    looks: dict[int, list[Array]] = defaultdict(list)
    for rows, drawn in zip(noise.rows, noise.drawn, strict=True):
        for row, one in zip(rows, drawn, strict=True):
            looks[int(row)].append(one)
    twice = [seen[:2] for seen in looks.values() if len(seen) > 1]
    return np.array([seen[0] for seen in twice]), np.array([seen[1] for seen in twice])


# Masks ---------------------------------------------------------------------------------------------------------


def _doubts_on_masks(first: Transcript, second: Transcript) -> Iterator[str]:
    masked = {party: _masked(bodies) for party, bodies in first.bodies.items()}
    again = {party: _masked(bodies) for party, bodies in second.bodies.items()}
    for party, bodies in masked.items():
        if len(bodies) < len(first.bodies[party]):
            yield f"{party} sends unmasked values"
            continue
        if not all(_is_uniform(values, modulus) for (_, modulus), values in _gather(bodies).items()):
            yield f"what {party} sends under its masks is not uniform"
        if not all(_differ_at_random(*pair) for pair in combinations(list(bodies.values())[:_ROUNDS], 2)):
            yield f"the masks of {party} repeat from round to round"
        if not all(_differ_at_random(bodies[place], again[party][place]) for place in bodies.keys() & again[party]):
            yield f"the masks of {party} can be computed from the training seed"
    if len(masked) < 3:
        return  # the sum of two is what the label party is to learn
    for one, other in combinations(masked, 2):
        mine, theirs = _gather(masked[one]), _gather(masked[other])
        both = [(mine[kind], theirs[kind], kind[1]) for kind in mine.keys() & theirs]
        if not all(_is_uniform(a + b, modulus) and _is_uniform(a - b, modulus) for a, b, modulus in both):
            yield f"the masks of {one} and {other} cancel"


def _masked(bodies: dict[Place, Symbols]) -> dict[Place, Masked]:
    return {place: one for place, one in bodies.items() if isinstance(one, Masked)}


def _gather(bodies: dict[Place, Masked]) -> dict[tuple[Kind, int], Array]:
    """All values of messages of a kind and a modulus, which a schedule of bits changes."""
    found: dict[tuple[Kind, int], list[Array]] = defaultdict(list)
    for (kind, _), one in bodies.items():
        found[kind, one.modulus].append(one.values.astype(np.int64))
    return {kind: _join(values) for kind, values in found.items()}


def _differ_at_random(one: Masked, other: Masked) -> bool:
    size = min(one.values.size, other.values.size)
    apart = one.values.ravel()[:size].astype(np.int64) - other.values.ravel()[:size].astype(np.int64)
    return _is_uniform(apart, min(one.modulus, other.modulus))


def _is_uniform(values: Array, modulus: int) -> bool:
    """In the highest bits and in the lowest ones, by chi squared."""
    values = values % modulus
    bins = min(modulus, _BINS)
    while bins > 2 and values.size < 10 * bins:
        bins //= 2
    return all(_fits(np.bincount(part, minlength=bins)) for part in (values * bins // modulus, values % bins))


def _fits(counts: Array) -> bool:
    """Equal chances."""
    expected = counts.sum() / len(counts)
    return bool(chdtrc(len(counts) - 1, ((counts - expected) ** 2 / expected).sum()) > _CHANCE)
