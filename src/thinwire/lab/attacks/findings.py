"""What an attack found in a run, with its positive control beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from thinwire.base.errors import BadTensor
from thinwire.engine.models.metrics import metric
from thinwire.lab.attacks.dp_release import ReleaseAudit, Verdict
from thinwire.lab.attacks.messages import MessageAudit


@dataclass(frozen=True, slots=True)
class Finding:
    """One attack: its score without a defence, and its score against the run as it was.

    The undefended score is the attack's positive control. Where it does not reach `needed`, the attack itself fails,
    and a low score against the run says nothing about the defence.

    Args:
        attack: its name.
        attacker: the party that attacks.
        leaks: what it tries to learn.
        measure: AUC or R2.
        chance: score of guessing, or of what the attacker could do without the run.
        needed: score at which the attack counts as working.
        undefended_score: None where only a run without the defence could tell.
        once_score: against the run, from one message about each row.
        score: against the run, from the messages of all epochs.
    """

    attack: str
    attacker: str
    leaks: str
    measure: str  # AUC or R2
    chance: float  # what guessing scores, or what the attacker could do without the run
    needed: float
    undefended_score: float | None  # None: only a run without the defence could tell
    once_score: float  # as run, from one message about each row
    score: float  # as run, from those of all epochs

    @property
    def works(self) -> bool:
        """Does the attack work where nothing defends?"""
        return (self.score if self.undefended_score is None else self.undefended_score) >= self.needed

    @property
    def meaning(self) -> str:
        """In one sentence."""
        if not self.works:
            return "The attack fails here even without a defence, so it says nothing about the defence."
        gained = (self.score - self.chance) / max(1 - self.chance, 1e-9)
        averaged = " once all epochs are averaged" if self.score - self.once_score > 0.1 else ""
        much = next(words for least, words in _MUCH[self.measure] if gained >= least)
        return f"{self.attacker[:1].upper()}{self.attacker[1:]} {much} {self.leaks}{averaged}."


_MUCH = {
    "AUC": [
        (0.9, "can infer nearly all of"),
        (0.5, "can infer most of"),
        (0.2, "can often guess"),
        (float("-inf"), "learns little or nothing about"),
    ],
    "R2": [
        (0.9, "can reconstruct nearly all of"),
        (0.5, "can reconstruct most of"),
        (0.1, "can reconstruct a part of"),
        (float("-inf"), "learns little or nothing about"),
    ],
}


@dataclass(frozen=True, slots=True)
class ModelScore:
    """Quality of the trained model: what the defence may have cost.

    Args:
        metric: its name.
        value: the score.
        rows: "test" or "training".

    Examples:
        >>> tw.audit.ModelScore("auc", 0.91, "test").rows
        'test'
    """

    metric: str
    value: float
    rows: str  # "test" or "training"


@dataclass(frozen=True)
class AuditReport:
    """All findings against one run.

    Args:
        method: the recipe's name.
        defence: of the labels.
        rows: rows that were attacked.
        looks: messages about each row that `Finding.score` averages.
        model: score of the trained model.
        findings: one per attack.
        release: of the noise on embeddings, where there is any.
        messages: of a repeated run, where noise or masks should hide messages.
        verdict: on what noise and masks promise; None where they promise nothing.
        notes: what was not attacked, and why.

    Examples:
        >>> result = tw.train(job, callbacks=[])
        >>> [finding.attack for finding in tw.audit.audit_job(job, rows=50).findings][-1]
        'inversion, 25 known rows'
    """

    method: str
    defence: str
    rows: int  # attacked
    looks: int  # messages about each row that `score` averages
    model: ModelScore
    findings: list[Finding]
    release: ReleaseAudit | None = None  # of the noise on embeddings, where there is some
    messages: MessageAudit | None = None  # of the run made anew, where noise or masks are to hide them
    verdict: Verdict | None = None  # on what noise and masks promise; None: they promise nothing here
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        found = [{**asdict(one), "works": one.works, "meaning": one.meaning} for one in self.findings]
        judged = {name: getattr(self, name) for name in ("release", "messages")}
        parts = {name: part and {**asdict(part), "verdict": part.verdict} for name, part in judged.items()}
        return {**asdict(self), "findings": found, **parts}


def join_verdicts(parts: Sequence[ReleaseAudit | MessageAudit | None]) -> Verdict:
    """One that is refuted refutes all; all must hold, and None was not looked at."""
    verdicts = {"inconclusive" if part is None else part.verdict for part in parts}
    return next(one for one in _WORST_FIRST if one in verdicts)


_WORST_FIRST: tuple[Verdict, ...] = ("refuted", "inconclusive", "holds")


def leak_auc(scores: Tensor, positive: Tensor) -> float:
    """How well scores [N] tell positive rows from the others: 0.5 is guessing, 1 is knowing.

    An attacker who knows a few rows knows which way round the scores are, so the better way counts.
    """
    area = metric("auc").compute(scores, positive.long())
    return max(area, 1 - area)


def leak_r2(guessed: Tensor, truth: Tensor) -> float:
    """How much of the columns [N, F] was guessed: 0 is no better than their averages, 1 is all.

    The average over the columns that vary.
    """
    if guessed.shape != truth.shape or truth.dim() != 2:
        raise BadTensor(f"guesses of shape {tuple(guessed.shape)} for columns of shape {tuple(truth.shape)}")
    vary = (truth != truth[:1]).any(dim=0)
    if not bool(vary.any()):
        raise BadTensor("every column is constant: there is nothing to guess")
    each = [metric("r2").compute(guessed[:, column], truth[:, column]) for column in torch.nonzero(vary).flatten()]
    return sum(each) / len(each)
