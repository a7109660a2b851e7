"""What one party's run writes down for those who look on, and for its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from thinwire.job.party_view import PartyView
from thinwire.job.privacy_plan import is_noisy
from thinwire.job.pulses import Pulses
from thinwire.job.result import better
from thinwire.job.run_info import describe_axes, describe_party, describe_start, loss_name, svfl_round
from thinwire.party import Batches, FeatureParty, LabelParty
from thinwire.report.keeping import keep_about, keep_pulse, keep_result
from thinwire.report.record import About, Held, Quality
from thinwire.transport.network_channel import NetworkChannel
from thinwire.types import PartyName

__all__ = ["PartyRecording", "about_part", "spent_so_far"]

_WHERE = "over the network: gRPC with mutual TLS, one process a party"


class PartyRecording:
    """Of one party's folder; it knows of the others what they have told."""

    def __init__(
        self, folder: Path, about: About, channel: NetworkChannel, privacy: Callable[[], list[dict[str, Any]]]
    ) -> None:
        self._folder = folder
        self._about = about
        self._pulses = Pulses(
            {about.me or "": channel.stopwatch},
            channel.ledger,
            about.rounds,
            partial(keep_pulse, folder),
            privacy,
        )

    def begin(self, round: int) -> None:
        keep_about(self._folder, self._about)
        self._pulses.begin(round)

    def round(self, done: int) -> None:
        self._pulses.round(done)

    def ended(self, done: int) -> None:
        self._pulses.look(done)

    def keep(self, quality: Quality | None) -> None:
        """Once the party's result is on disk."""
        keep_result(self._folder, None, quality)


def about_part(
    own: PartyView, party: FeatureParty | LabelParty, widths: Mapping[PartyName, int], batches: Batches, rows: int
) -> About:
    """Of the others the names and the widths; what they hold is theirs to tell."""
    settings = own.settings
    mine = describe_party(party, widths.get(own.me), party.optimizer or own.optimizer)
    held = [
        mine if name == own.me else Held(name=name, role="feature", width=widths.get(name))
        for name in own.feature_parties
    ]
    label = own.label_party
    held.append(mine if own.is_label_party else Held(name=label, role="label", width=widths.get(label)))
    return About(
        method=own.recipe.name,
        me=own.me,
        label_party=own.label_party,
        parties=tuple(held),
        axes=describe_axes(own.recipe, _WHERE),
        rows=rows,
        test_rows=mine.test_rows or 0,
        batch_size=settings.batch_size,
        metrics=tuple(settings.metrics) if own.is_label_party else (),
        target=None if settings.target is None else (settings.target.metric, settings.target.value),
        loss=loss_name(party.loss) if isinstance(party, LabelParty) else "",
        better={name: better(name) for name in (*settings.metrics, "loss")},
        who_sees={name: tuple(seen) for name, seen in own.who_sees().items()},
        protection=own.budget(),
        svfl_round=svfl_round(_exchanged(own, widths), rows, settings.batch_size),
        **describe_start(own.recipe.digest(), batches, settings.seed),
    )


def _exchanged(own: PartyView, widths: Mapping[PartyName, int]) -> list[int]:
    """Of the embeddings that this party sends or takes."""
    return [widths[name] for name in (own.feature_parties if own.is_label_party else (own.me,))]


def spent_so_far(own: PartyView, spent: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """What changes from round to round; nothing does where nothing is proven."""
    if not is_noisy(own.recipe):
        return []
    found = spent()
    return [{key: found[key] for key in ("party", "delta", "observers", "budget")}]
