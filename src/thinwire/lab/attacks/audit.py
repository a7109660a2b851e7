"""The leakage attacks that apply to a job, or to a run's folder, and what they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from thinwire.base.errors import BadInput, BadParameter
from thinwire.base.types import PartyName, Progress
from thinwire.engine.compress import PoissonBinomial
from thinwire.engine.models.metrics import metric
from thinwire.engine.models.regression import RegressionTop
from thinwire.engine.privacy import Labels, poisson_binomial_epsilon
from thinwire.engine.privacy.accounting import DEFAULT_DELTA
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.programs.parties import FeatureParty
from thinwire.engine.protocols.evaluation import compute_outputs
from thinwire.engine.schedule import OneWay
from thinwire.job.job import Job
from thinwire.job.job_loader import load_job
from thinwire.job.job_snapshot import digest_data, require_same_text
from thinwire.job.own_code import CodeSources
from thinwire.lab.attacks.dp_release import FreshNoise, Release, ReleaseAudit, audit_release
from thinwire.lab.attacks.findings import AuditReport, Finding, ModelScore, join_verdicts, leak_auc, leak_r2
from thinwire.lab.attacks.inference import (
    draw_labelled_rows,
    invert_embeddings,
    score_by_completion,
    score_by_direction,
    score_by_norm,
    score_by_spectrum,
    score_from_scratch,
)
from thinwire.lab.attacks.messages import MessageAudit, audit_messages, hides_messages, list_unseen
from thinwire.lab.attacks.views import (
    AUDIT_KEY,
    THE_SUM,
    ObservedViews,
    embeddings,
    exact_views,
    looks_of,
    record_derivatives,
    views,
)
from thinwire.predict.model_store import RunFolder, load_model
from thinwire.storage import layout

_KNOWN_OF_CLASS = 10  # rows of the class that a direction attacker knows
_KNOWN_LABELS = 40  # that a completing attacker knows
_KNOWN_FEATURES = 100  # rows that an inverting attacker knows
_MOST_COLUMNS = 128  # to invert
_FEWEST = 30  # rows of a class to attack: some of them are known
_MOST_DRAWS = 100_000_000  # binomial trials to measure a release with


def _ignore_progress(done: int, total: int, stage: str) -> None:
    pass


@dataclass(frozen=True)
class _Seen:
    """What is seen of the rows: exactly, as run at one look, as run at all looks."""

    exact: ObservedViews
    once: ObservedViews
    always: ObservedViews

    @classmethod
    def of(cls, job: Job, rows: Tensor, looks: int) -> _Seen:
        once = views(job, rows, 1)
        return cls(exact_views(job, rows), once, once if looks == 1 else views(job, rows, looks))

    def find_worst(
        self, score: Callable[[ObservedViews, PartyName], float], parties: Sequence[PartyName]
    ) -> tuple[PartyName, dict[str, float]]:
        """The party with the highest score over all looks, and its scores as a `Finding` names them."""
        found = {party: score(self.always, party) for party in parties}
        worst = max(found, key=found.__getitem__)
        controls = {"undefended_score": score(self.exact, worst), "once_score": score(self.once, worst)}
        return worst, {**controls, "score": found[worst]}


def require_single_rows(job: Job) -> None:
    """Attacks look at the embedding and the derivative of each row; with a group there is one of all an owner's."""
    if job.owners:
        raise BadInput(
            f"party {next(iter(job.owners))!r} has a group: one derivative comes for all rows of an owner, and an "
            "audit attacks that of every row. Audit the same job without group, with owners' columns in every row: "
            "it sends no less"
        )


def audit_job(
    job: Job,
    begun: Job | None = None,
    rows: int = 2000,
    heard: Mapping[PartyName, Tensor] | None = None,
    messages: MessageAudit | None = None,
    on_progress: Progress | None = None,
) -> AuditReport:
    """Attacks a job whose models are trained. Nothing is sent; only the attackers' own models are trained.

    Args:
        job: the job after `train`.
        begun: the same job with the models as they were before training.
        rows: most training rows that are attacked, drawn at random; 50 or more.
        heard: what each feature party received over the whole run, from `record_derivatives(begun)`.
        messages: what its messages showed, from `audit_messages(begun)`.
        on_progress: called with attacks done, attacks in all, and what is attacked.

    Raises:
        BadParameter: fewer than 50 rows.
        BadInput: the job has fewer than 50 training rows.

    Examples:
        >>> result = tw.train(job, callbacks=[])
        >>> tw.audit.audit_job(job, rows=50).rows
        50
    """
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 50:
        raise BadParameter(f"rows must be an integer, 50 or more, got {rows!r}")
    require_single_rows(job)
    if job.rows < 50:
        raise BadInput(
            f"the job has {job.rows} training rows; an audit needs at least 50 to separate a leak from chance"
        )
    job.check()
    rng = torch.Generator().manual_seed(0)
    chosen = torch.randperm(job.rows, generator=rng)[:rows]
    tell = on_progress or _ignore_progress
    tell(0, 1, "messages about the rows")
    seen = _Seen.of(job, chosen, looks_of(job))
    findings: list[Finding] = []
    notes: list[str] = []
    rare = _rare_class(job.label_party.labels[chosen])
    if job.recipe.labels is Labels.SHARED:
        notes.append("labels are shared: every feature party receives all of them, so no attack is needed")
    elif isinstance(job.recipe.schedule, OneWay):
        notes.append("no labels or derivatives are sent down: feature parties receive nothing that reveals labels")
    elif rare is None:
        notes.append(f"labels were not attacked: they are not classes, or none has {_FEWEST} of these rows")
    else:
        positive = job.label_party.labels[chosen] == rare
        leaks = f"the rows of class {rare}"
        moments = {"after training": seen}
        if begun is not None:
            moments = {"before training": _Seen.of(begun, chosen, looks=1), **moments}
        if heard:
            told = {name: table[chosen] for name, table in heard.items()}
            moments["whole run"] = replace(seen, always=ObservedViews(told, seen.always.embeddings))
        attacks = len(moments) * len(_ON_DERIVATIVES) + 2
        for moment, then in moments.items():
            for name in _ON_DERIVATIVES:
                tell(len(findings), attacks, f"attack: {name}, {moment}")
                findings.append(_on_derivatives(name, moment, then, positive, leaks))
        tell(len(findings), attacks, "attack: model completion")
        findings.append(_completion(job, begun, chosen, positive, leaks))
    tell(len(findings), len(findings) + 1, "attack: inversion")
    findings.append(_inversion(job, chosen, seen))
    tell(len(findings), len(findings), "attacks")
    if isinstance(job.label_party.top, RegressionTop):
        notes.append(
            "features were attacked by each party's outputs alone: a regression also shows the label party one more "
            "direction of a party's columns with every exchange, up to all of them, which no attack here looks at"
        )
    release = _release(job)
    judged = [messages] if release is None else [release, messages]
    if unseen := list(list_unseen(job, messages)):
        notes.append(f"not examined: {'; '.join(unseen)}")
    return AuditReport(
        method=job.recipe.name,
        defence=str(job.recipe.defence),
        rows=len(chosen),
        looks=looks_of(job),
        model=_model_score(job),
        findings=findings,
        release=release,
        messages=messages,
        verdict=join_verdicts(judged) if hides_messages(job) else None,
        notes=notes,
    )


# Labels ------------------------------------------------------------------------------------------------------


def _by_direction(derivatives: Tensor, positive: Tensor) -> float:
    known = torch.nonzero(positive).flatten()[:_KNOWN_OF_CLASS]
    return _auc_of_others(score_by_direction(derivatives, known), positive, known)


def _auc_of_others(scores: Tensor, positive: Tensor, known: Tensor) -> float:
    """Over the rows that the attacker does not know."""
    unknown = torch.ones(len(positive), dtype=torch.bool)
    unknown[known] = False
    return leak_auc(scores[unknown], positive[unknown])


_ON_DERIVATIVES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "norm": lambda derivatives, positive: leak_auc(score_by_norm(derivatives), positive),
    "direction": _by_direction,
    "spectral": lambda derivatives, positive: leak_auc(score_by_spectrum(derivatives), positive),
}


def _on_derivatives(name: str, moment: str, seen: _Seen, positive: Tensor, leaks: str) -> Finding:
    """The feature party that learns most."""

    def score(shown: ObservedViews, party: PartyName) -> float:
        return _ON_DERIVATIVES[name](shown.derivatives[party].cpu(), positive)

    worst, scores = seen.find_worst(score, tuple(seen.always.derivatives))
    return Finding(
        attack=f"{name}, {moment}",
        attacker=f"feature party {worst}",
        leaks=leaks,
        measure="AUC",
        chance=0.5,
        needed=0.7,
        **scores,
    )


def _completion(job: Job, begun: Job | None, rows: Tensor, positive: Tensor, leaks: str) -> Finding:
    """The feature party that learns most from its own trained model and a few labels."""
    known = draw_labelled_rows(positive, _KNOWN_LABELS, seed=0)

    def completed(party: FeatureParty) -> float:
        scores = score_by_completion(embeddings(party.bottom, party.features[rows]), known, positive[known])
        return _auc_of_others(scores, positive, known)

    found = {party.name: completed(party) for party in job.parties}
    worst = max(found, key=found.__getitem__)
    alone = 0.5
    if begun is not None:
        party = begun.parties[job.names.index(worst)]
        scratch = score_from_scratch(party.bottom, party.features[rows], known, positive[known])
        alone = _auc_of_others(scratch, positive, known)
    undefended = found[worst] if isinstance(job.recipe.defence, NoDefence) else None
    return Finding(
        attack=f"model completion, {len(known)} labels",
        attacker=f"feature party {worst}",
        leaks=leaks,
        measure="AUC",
        chance=alone,
        needed=min(1.0, alone + 0.02),
        undefended_score=undefended,
        once_score=found[worst],
        score=found[worst],
    )


def _rare_class(labels: Tensor) -> int | None:
    """The rarest class with rows enough; None where labels are no classes."""
    if labels.dim() != 1 or bool((labels != labels.round()).any()):
        return None
    classes, counts = labels.long().unique(return_counts=True)
    enough = torch.minimum(counts, len(labels) - counts) >= _FEWEST
    if not bool(enough.any()) or len(labels) < 2 * _KNOWN_LABELS:
        return None
    return int(classes[enough][counts[enough].argmin()])


# Features ----------------------------------------------------------------------------------------------------


def _inversion(job: Job, rows: Tensor, seen: _Seen) -> Finding:
    """The feature party that loses most to the label party."""
    known = torch.arange(min(_KNOWN_FEATURES, len(rows) // 2))

    def rebuilt(shown: ObservedViews, party: PartyName) -> float:
        table = job.parties[job.names.index(party)].features[rows].double().flatten(1)
        columns = torch.linspace(0, table.shape[1] - 1, min(table.shape[1], _MOST_COLUMNS)).round().long().unique()
        truth = table[:, columns]
        truth = truth.where(~truth.isnan(), truth.nanmean(dim=0))  # a gap is no value to find
        if bool((truth == truth[:1]).all()):
            return 0.0  # nothing to find
        held = shown.embeddings[THE_SUM if THE_SUM in shown.embeddings else party]
        guessed = invert_embeddings(held.cpu(), known, truth[known])
        return leak_r2(guessed[len(known) :], truth[len(known) :])

    worst, scores = seen.find_worst(rebuilt, job.names)
    shared = job.recipe.labels is Labels.SHARED
    return Finding(
        attack=f"inversion, {len(known)} known rows",
        attacker="every other party" if shared else f"label party {job.label_party.name}",
        leaks=f"the features of {worst}",
        measure="R2",
        chance=0.0,
        needed=0.1,
        **scores,
    )


def _release(job: Job) -> ReleaseAudit | None:
    """One noisy sum of a row, as the label party sees it: claimed and measured epsilon."""
    mechanism = job.recipe.uplink.compressor
    if not isinstance(mechanism, PoissonBinomial):
        return None
    width = next(iter(job.check().values()))
    release = Release(mechanism, width, len(job.parties))
    claimed = poisson_binomial_epsilon(
        trials=mechanism.trials,
        beta=mechanism.beta,
        width=width,
        unknown_parties=release.parties,
        epochs=1,
        delta=DEFAULT_DELTA,
    )
    samples = min(100_000, _MOST_DRAWS // (mechanism.trials * width * release.parties))
    return audit_release(claimed, release, DEFAULT_DELTA, FreshNoise(AUDIT_KEY), samples=max(samples, 100))


def _model_score(job: Job) -> ModelScore:
    """On the test rows where there are some: AUC for two classes, else the job's first metric."""
    label = job.label_party
    tested = label.test_labels is not None and all(party.test_features is not None for party in job.parties)
    labels = label.test_labels if tested else label.labels
    tables = [
        embeddings(party.bottom, party.test_features if tested else party.features)
        for party in job.everyone
        if party.bottom is not None
    ]
    said = compute_outputs(label.top, label.fusion, tables)
    binary = said.dim() == 1 or said.shape[1] <= 2
    both = len(labels.unique()) == 2 and bool(((labels == 0) | (labels == 1)).all())
    name = "auc" if binary and both else next(iter(job.metrics), "log_loss")
    return ModelScore(name, metric(name).compute(said, labels), "test" if tested else "training")


# The audit of a run folder: its job, its data, its models as they began and as they ended -------------------------


def audit_run(
    folder: str | Path,
    rows: int = 2000,
    replay: bool = False,
    code: CodeSources | None = None,
    on_progress: Progress | None = None,
) -> AuditReport:
    """Runs every leakage attack that applies against a finished run.

    Args:
        folder: the run folder, with a job file.
        rows: most training rows that are attacked.
        replay: train once more, attack what feature parties received over all rounds, and check noise and masks.
        code: where your own classes may come from; never the run folder.
        on_progress: called with steps done, steps in all, and the current step; rounds while training once more.

    Raises:
        BadInput: not a run folder, or the folder of a single party.
    """
    folder = Path(folder)
    if not (folder / layout.JOB).is_file():
        raise BadInput(
            f"{folder} is not a run folder: it holds no job.toml. Give the folder that `thinwire train` named; a "
            "job of your own Python is audited with thinwire.audit.audit_job(job)"
        )
    RunFolder(folder).require_whole(
        "an audit needs the data of all parties. Audit the same job trained in one process with `thinwire "
        "train`, on data of your own"
    )
    job = load_job(folder / layout.JOB, code=code or CodeSources.parse())
    require_same_text(folder, (folder / layout.JOB).read_text(), digest_data(job))
    require_single_rows(job)
    begun = job.duplicate()
    for name, module in job.modules().items():
        load_model(folder, name, module)
    if not replay:
        return audit_job(job, begun, rows, on_progress=on_progress)
    rounds, tell = job.divide_rows().rounds, on_progress or _ignore_progress
    heard = None
    if job.recipe.labels is not Labels.SHARED:
        heard = record_derivatives(begun, lambda done: tell(done, rounds, "training once more, rounds"))
    tell(0, 1, "messages of the first rounds")
    return audit_job(job, begun, rows, heard, audit_messages(begun), on_progress)
