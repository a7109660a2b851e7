"""What a party's report says of its run before the first round."""

from __future__ import annotations

from collections.abc import Mapping

from thinwire.base.types import PartyName
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.programs.program import Batches
from thinwire.job.party_view import PartyView
from thinwire.report.record import PartyInfo, RunInfo
from thinwire.training.result import better
from thinwire.training.run_info import describe_axes, describe_party, describe_start, loss_name, svfl_round

_WHERE = "over the network: gRPC with mutual TLS, one process a party"


def describe_party_run(
    own: PartyView, party: FeatureParty | LabelParty, widths: Mapping[PartyName, int], batches: Batches, rows: int
) -> RunInfo:
    """Of the others the names and the widths; what they hold is theirs to tell."""
    settings = own.settings
    mine = describe_party(party, widths.get(own.me), party.optimizer or own.optimizer)
    held = [
        mine if name == own.me else PartyInfo(name=name, role="feature", width=widths.get(name))
        for name in own.feature_parties
    ]
    label = own.label_party
    held.append(mine if own.is_label_party else PartyInfo(name=label, role="label", width=widths.get(label)))
    return RunInfo(
        method=own.recipe.name,
        me=own.me,
        label_party=own.label_party,
        parties=tuple(held),
        axes=describe_axes(own.recipe, _WHERE),
        rows=rows,
        test_rows=mine.test_rows or 0,
        batch_size=settings.batch_size,
        metrics=tuple(settings.metrics) if own.is_label_party else (),
        target=settings.target,
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
