"""A party's own rows and models, and at the label party the top model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from thinwire import __version__
from thinwire.errors import BadInput
from thinwire.job.party_view import LabelData, PartyView
from thinwire.network.doctor.check import Check, Checks, Verdict, not_checked, ok, problem, warning
from thinwire.network.handshake import ProbeHello
from thinwire.party import FeatureParty
from thinwire.types import PartyName

__all__ = ["OwnData", "own_rows", "parameters", "tables", "top_model"]


@dataclass(frozen=True)
class OwnData:
    """A party's own tables, read, and its bottom model."""

    data: FeatureParty | LabelData
    rows: int
    test_rows: int
    width: int  # 0 where it has no features
    bottom: nn.Module | None


def own_rows(own: PartyView) -> Checks[tuple[ProbeHello, OwnData | None]]:
    """Says of itself to the others what could be read: sizes and digests."""
    digests = yield from _row_ids(own)
    held = yield from _data(own)
    brought = ProbeHello(party=own.me, version=__version__, agreement=own.agreement())
    if held is not None:
        sizes = {"rows": held.rows, "test_rows": held.test_rows, "width": held.width}
        brought = brought.model_copy(update={**sizes, **digests})
    return brought, held


def _row_ids(own: PartyView) -> Checks[dict[str, str | None]]:
    try:
        ids, tests = own.row_ids(), own.test_row_ids()
    except BadInput as error:
        yield problem("row ids", "cannot be read", str(error))
        return {}
    found = {"row_ids": None if ids is None else ids.digest, "test_row_ids": None if tests is None else tests.digest}
    if ids is None:
        way_out = f"name them in the section of {own.me!r} as ids = {{ file, column }}; only a digest travels"
        yield warning("row ids", "not named: whether all hold the same rows in one order stays unchecked", way_out)
    else:
        yield ok("row ids", f"{ids.count} ids, all different, digest {ids.digest[:12]}", **found)
    return found


def _data(own: PartyView) -> Checks[OwnData | None]:
    try:
        held = _labels_held(own) if own.is_label_party else _features_held(own)
    except BadInput as error:
        yield problem("data", "cannot be used", str(error))
        yield from not_checked(("model",), "needs the data")
        return None
    shapes = {name: list(table.shape) for name, table in tables(held).items()}
    rows = f"{held.rows} training rows, {held.test_rows or 'no'} test rows"
    says = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
    yield ok("data", f"{rows} ({says})", rows=held.rows, test_rows=held.test_rows, shapes=shapes)
    if held.bottom is None:
        yield ok("model", "no bottom model: this party has no features")
    else:
        count = parameters(held.bottom)
        yield ok("model", f"{count} parameters, embedding of width {held.width}", parameters=count, width=held.width)
    return held


def _labels_held(own: PartyView) -> OwnData:
    data = own.load_label_data()
    tests = 0 if data.test_labels is None else len(data.test_labels)
    return OwnData(data, len(data.labels), tests, data.width or 0, data.bottom)


def _features_held(own: PartyView) -> OwnData:
    party = own.load_features()
    tests = 0 if party.test_features is None else len(party.test_features)
    return OwnData(party, len(party.features), tests, party.width or 0, party.bottom)


def tables(held: OwnData) -> dict[str, Tensor]:
    names = ("features", "test_features", "labels", "test_labels")
    found = {name: getattr(held.data, name, None) for name in names}
    return {name.replace("_", " "): table for name, table in found.items() if isinstance(table, Tensor)}


def parameters(module: nn.Module) -> int:
    return sum(part.numel() for part in module.parameters())


def top_model(own: PartyView, held: OwnData | None, widths: Mapping[PartyName, int]) -> Check:
    if held is None or not isinstance(held.data, LabelData):
        return Check("top model", Verdict.NOT_CHECKED, "needs the data")
    unknown = [name for name in own.feature_parties if name not in widths]
    if unknown:
        says = (
            f"needs the embeddings' widths of {', '.join(map(repr, unknown))}: --wait SECONDS while their doctors run"
        )
        return Check("top model", Verdict.NOT_CHECKED, says)
    try:
        party = own.label_party_of(held.data, widths)
    except BadInput as error:
        return problem("top model", "does not fit the parties' embeddings", str(error))
    count, shown = parameters(party.top), ", ".join(f"{name} {width}" for name, width in widths.items())
    return ok("top model", f"{count} parameters, for embeddings of width {shown}", parameters=count)
