"""What leaks, and what a defence costs: the figures of docs/audit.md, as its tables.

    OMP_NUM_THREADS=1 python benchmarks/audit.py [labels] [features] [releases] [stateful]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/audit.py inversion

Without a table's name all but `inversion`, which needs data sets. Everything is seeded; the privacy noise too, which
here has to protect nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.tasks import TASKS, Rows, build_job, load_data
from thinwire.base.process import share_memory_pool
from thinwire.base.seeds import derive_seed
from thinwire.engine.compress import Keystream, PoissonBinomial, Uniform
from thinwire.engine.methods import cvfl, pbm, svfl, thin
from thinwire.engine.models.encoders import Encoder
from thinwire.engine.privacy import NoiseKey, SecureSum, poisson_binomial_epsilon
from thinwire.engine.privacy.accounting import Exposure, Observer, Parties, PoissonBinomialRelease, PrivatelyTrained
from thinwire.engine.privacy.accounting.ledger import end_to_end_epsilon
from thinwire.engine.privacy.defences import Defence, LabelDP, Marvell, MaxNorm, NoDefence, standard_normal
from thinwire.engine.programs.program import Observers
from thinwire.engine.protocols.evaluation import EvaluationVerdict, embed_in_chunks
from thinwire.lab.attacks import (
    AuditReport,
    Release,
    ReleaseAudit,
    Scene,
    audit_job,
    audit_release,
    audit_stateful,
    record_derivatives,
)
from thinwire.lab.attacks.dp_release import FreshNoise, Noise
from thinwire.lab.attacks.findings import leak_r2
from thinwire.lab.attacks.inference import invert_embeddings
from thinwire.lab.attacks.stateful import ManyBottoms, TrainStep
from thinwire.training.simulator import SimulatedParties

KEY = NoiseKey(bytes(range(32)))
SEEDS = (0, 1, 2)
EPOCHS = 20
DELTA = 1e-3
# trials, beta, width, parties, looks
SETTINGS = [
    (1, 0.25, 1, 2, 1),
    (4, 0.25, 1, 2, 1),
    (1, 0.25, 4, 4, 1),
    (1, 0.1, 8, 3, 1),
    (2, 0.15, 4, 3, 1),
    (4, 0.05, 4, 1, 1),
    (4, 0.05, 16, 4, 1),
    (4, 0.05, 16, 12, 1),
    (8, 0.05, 8, 4, 1),
    (16, 0.05, 4, 4, 1),
    (64, 0.02, 4, 4, 1),
    (1, 0.25, 4, 4, 2),
    (4, 0.05, 4, 3, 4),
]


def eights(recipe: tw.Recipe, seed: int, width: int = 8) -> tw.Job:
    """Is this digit an 8? One in ten is. Each of four parties has a quarter of the image."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 8, 8)
    labels = torch.tensor(digits == 8).long()
    test = torch.arange(len(labels)) % 3 == 0
    torch.manual_seed(seed)
    quarters = [images[:, 4 * (k // 2) :, 4 * (k % 2) :][:, :4, :4].flatten(1) for k in range(4)]
    parties = [
        tw.FeatureParty(
            f"quarter{k + 1}",
            quarter[~test],
            nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, width), nn.Tanh()),
            quarter[test],
        )
        for k, quarter in enumerate(quarters)
    ]
    top = nn.Linear(width, 1)
    return tw.Job(
        parties,
        tw.LabelParty("registry", labels[~test], top, labels[test], loss=tw.losses.binary_cross_entropy),
        recipe,
        optimizer=tw.Adam(lr=0.01),
        batch_size=100,
        epochs=EPOCHS,
        seed=seed,
        metrics=["auc"],
        diagnostics=False,
        noise_secret=bytes([seed]) * 32,
    )


def audits(recipe: tw.Recipe) -> list[AuditReport]:
    found = []
    for seed in SEEDS:
        job = eights(recipe, seed)
        begun = job.duplicate()
        tw.train(job, callbacks=[])
        found.append(audit_job(job, begun, heard=record_derivatives(begun)))
    return found


def mean(reports: list[AuditReport], attack: str, score: str = "score") -> str:
    values = [getattr(one, score) for report in reports for one in report.findings if one.attack.startswith(attack)]
    return f"{sum(values) / len(values):.2f}"


def labels() -> Iterator[str]:
    yield "| defence | norm | direction | spectral | completion | model |"
    yield "|---|---|---|---|---|---|"
    defences: list[Defence] = [NoDefence(), MaxNorm(), Marvell(1.0), Marvell(4.0), Marvell(16.0)]
    defences += [LabelDP(3.0), LabelDP(1.0)]
    for defence in defences:
        reports = audits(replace(svfl(), defence=defence))
        cells = [
            f"{mean(reports, f'{attack}, whole', 'once_score')} / {mean(reports, f'{attack}, whole')}"
            for attack in ("norm", "direction", "spectral")
        ]
        completion = f"{mean(reports, 'model')} ({mean(reports, 'model', 'chance')})"
        model = sum(report.model.value for report in reports) / len(reports)
        yield f"| `{defence}` | {' | '.join(cells)} | {completion} | {model:.2f} |"


def features() -> Iterator[str]:
    yield "| recipe | pixels rebuilt (R2), from one message / all epochs | model |"
    yield "|---|---|---|"
    summed = replace(cvfl(Uniform(8, bounds=(-1.0, 1.0)), labels="private"), aggregation=SecureSum())
    recipes = {
        "`svfl()`": svfl(),
        "8 bits, secure sum without noise": summed,
        "`pbm(64, 0.25)`": pbm(64, 0.25),
        "`pbm(16, 0.2)`": pbm(16, 0.2),
        "`pbm(4, 0.05)`": pbm(4, 0.05),
    }
    for name, recipe in recipes.items():
        reports = audits(recipe)
        model = sum(report.model.value for report in reports) / len(reports)
        once, always = mean(reports, "inv", "once_score"), mean(reports, "inv")
        yield f"| {name} | {once} / {always} | {model:.2f} |"


@dataclass(frozen=True, slots=True)
class ReusedNoise:
    """Wrong: a secret, but the same bits at every look."""

    key: NoiseKey

    def __call__(self, world: str, party: int, look: int) -> Keystream:
        return self.key.for_round(0, 0, 0, f"{world}/{party}")


@dataclass(frozen=True, slots=True)
class SeededNoise:
    """Wrong: bits that follow from a seed that others know."""

    seed: int

    def __call__(self, world: str, party: int, look: int) -> Keystream:
        return Keystream.from_seed(derive_seed(self.seed, party, look))


def releases() -> Iterator[str]:
    yield "| trials | beta | width | parties | looks | noise | claimed | measured at least | by |"
    yield "|---|---|---|---|---|---|---|---|---|"
    fresh = FreshNoise(KEY)
    for trials, beta, width, parties, looks in SETTINGS:
        yield _release(Release(PoissonBinomial(trials, beta), width, parties, looks), "as it is", fresh)
    halved = Release(PoissonBinomial(4, 0.05), 16, 4)
    yield _release(halved, "**half the variance**", fresh, PoissonBinomial(8, 0.05))
    yield _release(replace(halved, looks=2), "**the same twice**", ReusedNoise(KEY))
    yield _release(halved, "**from a known seed**", SeededNoise(0))


def _release(said: Release, what: str, noise: Noise, really: PoissonBinomial | None = None) -> str:
    trials, beta = said.mechanism.trials, said.mechanism.beta
    claimed = poisson_binomial_epsilon(trials, beta, said.width, said.parties, said.looks, DELTA)
    done = replace(said, mechanism=really or said.mechanism)
    found = audit_release(claimed, done, DELTA, noise, samples=800_000, guesses=[SeededNoise(0)])
    figures = f"{claimed:.2f} | {found.measured:.2f}{_mark(found)} | {found.attacker}"
    return f"| {trials} | {beta} | {said.width} | {said.parties} | {said.looks} | {what} | {figures} |"


def _mark(found: ReleaseAudit) -> str:
    return "" if found.verdict == "holds" else f" **({found.verdict})**"


def row_gradients(module: ManyBottoms, rows: Tensor, derivative: Tensor) -> Tensor:
    """What each row adds to the gradient: [R, N, E]."""
    with torch.no_grad():
        slope: Tensor = 1 - module(rows).square()
        return derivative * slope * rows[None, :, None]


@dataclass(frozen=True, slots=True)
class RawStep:
    """As ordinary training does: every row's gradient counts as it is."""

    lr: float

    def __call__(self, module: ManyBottoms, rows: Tensor, derivative: Tensor) -> None:
        with torch.no_grad():
            module.weight.sub_(self.lr * row_gradients(module, rows, derivative).sum(dim=1))


@dataclass(frozen=True, slots=True)
class PrivateStep:
    """As `DPBottom` does for one model: each row's gradient clipped, Gaussian noise on the sum."""

    lr: float
    clip: float
    noise_multiplier: float
    noise: Keystream

    def __call__(self, module: ManyBottoms, rows: Tensor, derivative: Tensor) -> None:
        gradients = row_gradients(module, rows, derivative)
        clipped = gradients * (self.clip / gradients.norm(dim=2, keepdim=True).clamp(min=self.clip))
        normal = torch.from_numpy(standard_normal(self.noise, tuple(module.weight.shape))).float()
        with torch.no_grad():
            module.weight.sub_(self.lr * (clipped.sum(dim=1) + self.noise_multiplier * self.clip * normal))


def stateful() -> Iterator[str]:
    yield "| bottom model trained | accounting | claimed | measured at least |"
    yield "|---|---|---|---|"
    scene, delta, lr = Scene(PoissonBinomial(4, 0.05)), 1e-5, 100.0
    by_use = poisson_binomial_epsilon(4, 0.05, scene.width, scene.parties, scene.rounds, delta)
    release = PoissonBinomialRelease(4, 0.05, scene.width)

    def line(how: str, accounting: str, claimed: float, step: TrainStep) -> str:
        found = audit_stateful(claimed, scene, delta, step, KEY)
        return f"| {how} | {accounting} | {claimed:.2f} | {found.measured:.2f}{_mark(found)} |"

    yield line("on raw rows", "of its own releases", by_use, RawStep(lr))
    for s in (8.0, 4.0, 2.0):
        exposure = Exposure(release, Parties(scene.parties), PrivatelyTrained(s))
        claimed = end_to_end_epsilon(exposure, Observer.LABEL_PARTY, exposure.epochs(scene.rounds), delta)
        step = PrivateStep(lr, 0.01, s, Keystream(bytes(32)))
        yield line(f"clipped, with noise {s:g}", "end to end", claimed, step)
    exposure = Exposure(release, Parties(scene.parties), PrivatelyTrained(4.0))
    claimed = end_to_end_epsilon(exposure, Observer.LABEL_PARTY, exposure.epochs(scene.rounds), delta)
    yield line(
        "clipped, the noise left out", "as if with noise 4", claimed, PrivateStep(lr, 0.03, 0.0, Keystream(bytes(32)))
    )


# Real data sets: codes of one exchange beside trained embeddings and the surrogates that thin leaves behind --------


@dataclass(frozen=True)
class Inversion:
    """A task of benchmarks/tasks.py, and the encoder of benchmarks/once.py for its tables."""

    about: str
    epochs: float
    encode: Callable[[int], Encoder]
    rows: int = 10_000  # that are trained on, at most
    rebuilt: int = 2000  # of these, by an attacker who does not know them


def encode_numbers(columns: int) -> Encoder:
    return tw.learners.PrincipalDirections(columns, 16, 17.0)


INVERSIONS = {
    "mnist": Inversion("MNIST, quadrants", 5, encode_numbers),
    "credit": Inversion("credit default", 10, lambda columns: tw.learners.Bins(columns, 6)),
    "physionet2012": Inversion("ICU stays, 48 hours", 4, encode_numbers, rows=2000, rebuilt=1000),
}
KNOWN = (100, 1000)
View: TypeAlias = list[tuple[Tensor, dict[str, Tensor]]]
MOST_COLUMNS = 256  # that are rebuilt, spread evenly


def inversion() -> Iterator[str]:
    yield "| | known rows | codes of `once` | trained `svfl` embeddings | `thin`'s surrogates |"
    yield "|---|---|---|---|---|"
    for name, asked in INVERSIONS.items():
        views = [view_rows(name, asked, seed) for seed in SEEDS]
        for known in KNOWN:
            cells = [
                fmean(find_worst(asked, view, how, known, seed) for seed, view in zip(SEEDS, views, strict=True))
                for how in ("once", "svfl", "thin")
            ]
            yield f"| {asked.about} | {known:,} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"


def find_worst(asked: Inversion, view: View, how: str, known: int, seed: int) -> float:
    """R2 of the party that loses most."""
    return max(rebuild(x, held[how], (known, asked.rebuilt), seed) for x, held in view)


def view_rows(name: str, asked: Inversion, seed: int) -> View:
    """Of each feature party its columns, and what the label party holds of them by each method."""
    task, data = TASKS[name], load_data(name)
    data = replace(data, train=limit_rows(data.train, asked.rows))
    tables = [x.flatten(1) for x in data.train.features]
    found: View = [(x, {"once": encode_rows(asked, x)}) for x in tables]
    for recipe in (svfl(), thin()):
        settings = {"seed": seed, "batch_size": 256, "epochs": asked.epochs, "optimizer": tw.Adam(lr=task.lr)}
        job = build_job(task, data, recipe, {**settings, "patience": None})
        parties = SimulatedParties(job, Observers(lambda _: EvaluationVerdict(), lambda _: None), bytes(32))
        parties.run()
        for program, party, (_, held) in zip(parties.features, job.parties, found, strict=True):
            surrogate = program.end.estimate()
            seen = embed_in_chunks(program.bottom.module, party.features) if surrogate is None else surrogate
            held[recipe.name] = seen
    return found


def limit_rows(rows: Rows, most: int) -> Rows:
    own = rows.label_features
    return Rows([x[:most] for x in rows.features], None if own is None else own[:most], rows.labels[:most])


def encode_rows(asked: Inversion, table: Tensor) -> Tensor:
    encoder = asked.encode(table.shape[1])
    encoder.fit(table)
    found: Tensor = encoder(table).round()
    return found


def rebuild(table: Tensor, held: Tensor, rows: tuple[int, int], seed: int) -> float:
    """R2 of rows that the attacker does not know, from those that it does; so many of each, drawn by the seed."""
    known = rows[0]
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))[: sum(rows)]
    columns = torch.linspace(0, table.shape[1] - 1, min(table.shape[1], MOST_COLUMNS)).round().long().unique()
    truth = table[order][:, columns].double()
    guessed = invert_embeddings(held[order].cpu(), torch.arange(known), truth[:known])
    return leak_r2(guessed[known:], truth[known:])


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "labels": labels,
    "features": features,
    "releases": releases,
    "stateful": stateful,
    "inversion": inversion,
}


def main() -> None:
    wanted = sys.argv[1:] or [name for name in TABLES if name != "inversion"]
    for name in wanted:
        if name not in TABLES:
            raise SystemExit(f"no table {name!r}; there are {', '.join(TABLES)}")
    for name in wanted:
        print(f"\n{name}\n")
        for line in TABLES[name]():
            print(line, flush=True)


if __name__ == "__main__":
    share_memory_pool()
    main()
