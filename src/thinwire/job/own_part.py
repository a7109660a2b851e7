"""From a job file to one party's part of it; no data is read, and no module imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thinwire.errors import BadInput
from thinwire.job.calls import named, optimizer_of, recipe_of
from thinwire.job.certificates import certificate_files, certificate_names
from thinwire.job.judged import judge_settings
from thinwire.job.messages import at, did_you_mean
from thinwire.job.part import OwnPart
from thinwire.job.reading import JobText, read_text
from thinwire.job.resolving import resolved_document
from thinwire.job.schema import (
    LabelEntry,
    LabelSection,
    NetworkSection,
    PartyEntry,
    PartySection,
    RosterFile,
    ServeSection,
    SplitSection,
)
from thinwire.job.sections import LabelData, loss_of
from thinwire.job.stand_ins import Rows, absent_feature_party, absent_label_party, job_of
from thinwire.job.who_sees import Roster
from thinwire.models import MODELS
from thinwire.privacy import Labels
from thinwire.recipe import Recipe
from thinwire.types import PartyName

__all__ = ["LabelData", "OwnPart", "own_part_of", "read_own_part", "roster_of"]

_OF_OTHERS = ("name", "certificate_name")
_OF_THE_TOP = ("top", "fusion", "loss", "class_weights")


def read_own_part(path: str | Path, name: PartyName, overrides: Sequence[str] = ()) -> OwnPart:
    """The part of party `name`, with `key=value` settings on top; refuses whatever cannot run."""
    path = Path(path)
    with at(str(path)):
        text = read_text(path, overrides, name)
    with text.located():
        return own_part_of(text, name)


def roster_of(text: JobText) -> RosterFile:
    """What all parties share, and who they are; refuses what no party could run, whatever its own section says."""
    file = text.validated(RosterFile)
    recipe = recipe_of("recipe", file.recipe)
    optimizer_of("optimizer", file.optimizer)
    if recipe.labels is Labels.SHARED:
        _shared_top(file.label_party)
    _judge(file, recipe, _roster(file, file.label_party))
    return file


def own_part_of(text: JobText, me: PartyName) -> OwnPart:
    """The part of party `me` in a job that was read as its own."""
    folder = text.path.resolve().parent
    file = text.validated(RosterFile)
    section = _own_section(text, file, me)
    recipe = recipe_of("recipe", file.recipe)
    optimizer = optimizer_of("optimizer", file.optimizer)
    if section.optimizer is not None:
        path = "label_party" if isinstance(section, LabelSection) else f"party.{me}"
        optimizer = optimizer_of(f"{path}.optimizer", section.optimizer)
    roster = _roster(file, section)
    _judge(file, recipe, roster)
    network = file.network or NetworkSection()
    return OwnPart(
        me=me,
        roster=roster,
        recipe=recipe,
        optimizer=optimizer,
        settings=file.job,
        network=network,
        serve=file.serve or ServeSection(),
        certificate_files=certificate_files(section, folder / network.certs, folder),
        certificate_names=certificate_names([*file.party, file.label_party]),
        folder=folder,
        section=section,
        shared_top=_shared_top(file.label_party) if recipe.labels is Labels.SHARED else None,
        document=_document(file.model_copy(update={"network": network}), me, recipe, folder),
        text=text,
    )


def _own_section(text: JobText, file: RosterFile, me: PartyName) -> PartySection | LabelSection:
    if file.label_party.name == me:
        return text.validated(LabelSection, ("label_party",))
    names = [party.name for party in file.party]
    if me in names:
        return text.validated(PartySection, ("party", names.index(me)))
    known = [*names, file.label_party.name]
    raise BadInput(f"no party is called {me!r}; there are {', '.join(known)}{did_you_mean(me, known)}")


def _roster(file: RosterFile, section: PartyEntry) -> Roster:
    tests = section.test_labels if isinstance(section, LabelEntry) else section.test_features
    return Roster(
        label_party=file.label_party.name,
        feature_parties=tuple(party.name for party in file.party),
        label_party_has_features=file.label_party.features is not None,
        has_test_rows=tests is not None or _keeps_rows_back(file.job.split),
    )


def _keeps_rows_back(split: SplitSection | None) -> bool:
    return split is not None and bool(getattr(split, split.evaluate))


def _judge(file: RosterFile, recipe: Recipe, roster: Roster) -> None:
    judge_settings(file.job)
    rows = Rows(file.job.batch_size or 1)
    parties = [absent_feature_party(name, rows, 1) for name in roster.feature_parties]
    job_of(recipe, file.job, parties, absent_label_party(roster.label_party, rows))  # names, and what [job] says
    with at("recipe"):
        recipe.check(len(parties), file.label_party.fusion, file.job.batches)


def _shared_top(entry: LabelEntry) -> LabelEntry:
    """What every party must know of the label party under shared labels."""
    if entry.top is None:
        raise BadInput(
            "label_party.top is missing: under shared labels every party builds the top model, so its table belongs "
            "into the part of the job that all parties share"
        )
    if "module" in entry.top:
        raise BadInput(
            "label_party.top.module: under shared labels every party runs the top model, and no party runs code that "
            "another one names; use one of ours, such as mlp_top, or private labels"
        )
    named("label_party.top", entry.top, "name", MODELS)
    loss_of(entry)
    return LabelEntry(
        name=entry.name, top=entry.top, fusion=entry.fusion, loss=entry.loss, class_weights=entry.class_weights
    )


def _document(file: RosterFile, me: PartyName, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The resolved job, without what is no matter of this party's."""
    document = resolved_document(file, folder)
    document.pop("link", None)
    shared = _OF_THE_TOP if recipe.labels is Labels.SHARED else ()
    document["party"] = [party if party["name"] == me else _only(party, _OF_OTHERS) for party in document["party"]]
    if file.label_party.name != me:
        document["label_party"] = _only(document["label_party"], (*_OF_OTHERS, *shared))
    return document


def _only(table: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: table[key] for key in keys if key in table}
