"""Rows with one owner in common, from tables to scores: in one process, and between parties."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from align.talking import SMALL
from predict.halves import asked, predicting, simulated_outputs, trained
from predict.online.servers import served
from thinwire.align import Alignment, Terms, intersect, write_alignment
from thinwire.align.party import AligningParty
from thinwire.base.errors import BadInput
from thinwire.cli.align import align
from thinwire.cli.check import check
from thinwire.cli.predict import predict
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.job_loader import load_job
from thinwire.job.party_view import read_party_view
from thinwire.job.row_selection import RowSet, RowSource
from thinwire.predict.run import load_run
from thinwire.training.erase import erase_rows
from thinwire.training.result import Result
from training.party.parties import (
    COLUMNS,
    LABEL_PARTY,
    ROWS,
    Document,
    PartyThread,
    Place,
    Seen,
    Shape,
    finished,
    left_models,
    made,
    simulated,
    threads,
)

OWNERS = 9


def place(folder: Path, recipe: dict[str, Any]) -> Place:
    """The bank holds owners of the clinic's rows, one of them without a row; shop holds single rows."""
    job = {"batch_size": 8, "split": {"validation": 0.2, "test": 0.2}}
    found = made(folder, Shape(recipe, ids=True, tests=False, job=job))
    rng = np.random.default_rng(6)
    for name in found.names:
        with np.load(folder / f"{name}.npz") as held:
            tables = {key: held[key] for key in held.files if "test" not in key}
        if name == "bank":
            owners = np.array([f"owner-{number}" for number in rng.permutation(OWNERS)])
            tables = {"x": rng.normal(size=(OWNERS, COLUMNS)), "id": owners}
        elif name == LABEL_PARTY:
            # Owner 0 has no row here, and the bank does not know of owner 9.
            tables["owner"] = np.array([f"owner-{number}" for number in rng.integers(1, OWNERS + 1, ROWS)])
        np.savez(folder / f"{name}.npz", **tables)
    for section in [*found.document["party"], found.document["label_party"]]:
        section.pop("test_ids")
        section["alignment"] = f"{section['name']}.alignment"
    found.document["party"][0]["group"] = "owner"
    found.write("job.toml")
    return found


def aligned(folder: Path, recipe: dict[str, Any]) -> Place:
    found = place(folder, recipe)
    rows = {name: RowSource(read_party_view(found.job, name).section, folder) for name in found.names}
    groups = {"bank": rows[LABEL_PARTY].read_owners("owner")}
    joined = intersect({name: one.ids for name, one in rows.items()}, LABEL_PARTY, backend=SMALL, groups=groups)
    for name, alignment in joined.items():
        write_alignment(rows[name].file, alignment)
    return found


def test_the_command_joins_rows_with_their_owners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = place(tmp_path, {"method": "svfl"})
    with pytest.raises(BadInput, match="create it with `thinwire align`"):
        load_job(found.job)
    align(found.job, workers=1, as_json=True)
    told = json.loads(capsys.readouterr().out)
    with np.load(tmp_path / f"{LABEL_PARTY}.npz") as held:
        known = held["owner"] != f"owner-{OWNERS}"
        owners = len(set(held["owner"][known]))
    assert told["rows"] == known.sum()
    assert told["owners"] == {"bank": owners}
    job = load_job(found.job)
    bank, rows = job.parties[0], job.all_rows
    assert rows == told["rows"]
    assert bank.count_rows() == job.rows
    assert len(bank.features) <= owners < job.rows
    check(found.job)
    shown = capsys.readouterr().out
    assert f"{len(bank.features)} owners of these rows" in shown
    assert "bank sees its own derivative for every owner of training rows" in shown
    assert "which of its own rows every row of the run belongs to" in shown
    assert "which rows have an owner of bank in common" in shown


def require_same(found: Place, there: Result, here: dict[str, dict[str, Any]]) -> None:
    assert here[LABEL_PARTY]["bytes"]["up"] == there.bytes.up
    assert here[LABEL_PARTY]["bytes"]["down"] == there.bytes.down
    for name, tensors in left_models(found).items():
        module = there.models[name].state_dict()
        assert all(torch.equal(module[key], tensor) for key, tensor in tensors.items())


def test_a_party_that_is_started_again_goes_on_with_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thinwire.training.party.party_checkpoints.PartyCheckpoints.is_due", lambda _: True)
    found = aligned(tmp_path, {"method": "thin"})
    parties: dict[str, PartyThread] = {}

    def stop(round: int) -> None:
        if round == 4:
            parties["bank"].run.session.stopping.ask()

    with threads(found, {"bank": Seen(at_round=stop)}) as started:
        parties.update(started)
        parties["bank"].join()
        again = PartyThread(found.job, "bank", found.out("bank"))
        again.start()
        summaries = finished({**started, "bank": again})
    require_same(found, simulated(found.job), summaries)


def test_organisations_align_rows_with_their_owners(tmp_path: Path) -> None:
    found = place(tmp_path, {"method": "svfl"})
    results: dict[str, Alignment] = {}

    def take_part(name: str) -> None:
        own = read_party_view(found.job, name)
        rows = RowSource(own.section, own.folder)
        groups = {"bank": rows.read_owners("owner")} if name == LABEL_PARTY else {}
        party = AligningParty(own.network_party, rows.what, lambda _: None, tuple(own.roster.grouped))
        results[name] = party.align(rows.ids, SMALL, Terms(), lambda *_: None, groups)

    running = [Thread(target=take_part, args=(name,)) for name in found.names]
    for one in running:
        one.start()
    for one in running:
        one.join(300)
    assert len({one.digest for one in results.values()}) == 1
    assert {name: one.match_count for name, one in results.items() if name != LABEL_PARTY}["bank"] == 8
    with np.load(tmp_path / f"{LABEL_PARTY}.npz") as clinic, np.load(tmp_path / "bank.npz") as bank:
        assert (clinic["owner"][results[LABEL_PARTY].rows] == bank["id"][results["bank"].rows]).all()


WRONG: dict[str, tuple[Callable[[Document], None], str]] = {
    "no alignment": (
        lambda d: d["party"][0].pop("alignment"),
        "party.bank.alignment is missing, but a group needs it",
    ),
    "no group": (lambda d: d["party"][0].pop("group"), "is of owners of rows, and there is no group"),
    "another group": (lambda d: d["party"][1].update(group="owner"), "is of single rows, not of a group"),
    "secure sum": (lambda d: d.update(recipe={"method": "pbm", "trials": 4, "beta": 0.1}), "secure sum"),
    "at the label party": (lambda d: d["label_party"].update(group="owner"), "label_party.group"),
}


@pytest.mark.parametrize(("change", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_group_that_cannot_be_is_refused(change: Callable[[Document], None], says: str, tmp_path: Path) -> None:
    found = aligned(tmp_path, {"method": "svfl"})
    with pytest.raises(BadInput, match=says):
        load_job(found.write("changed.toml", change))


def test_parties_score_as_the_simulator_does(tmp_path: Path) -> None:
    found = aligned(tmp_path, {"method": "svfl"})
    folder = trained(found)
    whole, expected = simulated_outputs(folder, RowSet.ALL)
    job = whole.job
    assert job is not None
    kinds = (None, HeldOut.VALIDATION, HeldOut.TEST)
    rows = {party.name: torch.cat([party.list_rows(kind) for kind in kinds]) for party in job.parties}
    assert torch.allclose(whole.predict(rows), expected, atol=1e-6)
    with predicting(found, dict.fromkeys(found.names, folder), RowSet.ALL) as (asking, _):
        outputs = asked(asking, torch.arange(job.all_rows))
        sent = {e["sender"]: e["bytes"] for e in asking.ledger.entries()}
    assert torch.equal(outputs, expected)
    assert sent["bank"] < 0.7 * sent["shop"]
    with served(found, dict.fromkeys(found.names, folder), RowSet.ALL) as online:
        reply = online.client.score({"rows": list(range(job.all_rows))})
    assert torch.equal(torch.tensor(reply.body["scores"], dtype=torch.float32), whole.outputs.format_scores(outputs))


def test_test_rows_may_have_tables_of_their_own(tmp_path: Path) -> None:
    found = aligned(tmp_path, {"method": "svfl"})

    def test_alike(document: Document) -> None:
        """The same tables once more, as test rows."""
        document["job"].pop("split")
        for section in [*document["party"], document["label_party"]]:
            named = [key for key in ("features", "labels", "ids", "alignment") if key in section]
            section.update({f"test_{key}": section[key] for key in named})

    job = load_job(found.write("tests.toml", test_alike))
    assert job.test_rows == job.rows
    assert torch.equal(job.parties[0].test_group, job.parties[0].group)

    def forget_alignment(document: Document) -> None:
        test_alike(document)
        document["label_party"].pop("test_alignment")

    alone = read_party_view(found.write("alone.toml", forget_alignment), LABEL_PARTY)
    with pytest.raises(BadInput, match=r"label_party\.test_alignment is missing, but a group needs it"):
        alone.load_label_data()


def test_an_owner_is_forgotten_with_all_its_rows(tmp_path: Path) -> None:
    found = aligned(tmp_path, {"method": "svfl"})
    folder = trained(found)
    party = load_job(found.job).parties[0]
    with np.load(tmp_path / "bank.npz") as bank:
        place = next(row for row, x in enumerate(bank["x"]) if np.allclose(x, party.features[2]))
        owner = str(bank["id"][place])
    erased = erase_rows(folder, ids=[owner])
    assert erased.rows == torch.nonzero(party.group == 2)[:, 0].tolist()
    assert len(erased.rows) > 1


def test_new_rows_are_joined_with_their_owners(tmp_path: Path) -> None:
    found = aligned(tmp_path, {"method": "svfl"})
    folder, rng = trained(found), np.random.default_rng(8)
    rows = np.array([f"new-{number}" for number in range(12)])
    owners = np.array([f"new-owner-{number}" for number in (0, 1, 0, 1, 2, 9, 0, 2, 2, 1, 1, 0)])
    np.savez(tmp_path / "new-clinic.npz", id=rows, owner=owners)
    np.savez(tmp_path / "new-shop.npz", id=rows[::-1], x=rng.normal(size=(12, COLUMNS)))
    known = np.array([f"new-owner-{number}" for number in range(4)])
    np.savez(tmp_path / "new-bank.npz", id=known, x=rng.normal(size=(4, COLUMNS)))
    words = [f"{name}={tmp_path / f'new-{name}.npz'}" for name in ("bank", "shop", "clinic")]
    predict(folder, out=tmp_path / "s.csv", features=words[:2], ids=words[2:])
    scores = {
        row["id"]: row["probability_1"] for row in csv.DictReader((tmp_path / "s.csv").read_text().splitlines())
    }
    assert set(scores) == set(rows[owners != "new-owner-9"])
    # The same by hand, each row with its owner's columns.
    with np.load(tmp_path / "new-bank.npz") as bank, np.load(tmp_path / "new-shop.npz") as shop:
        chosen = [place for place, owner in enumerate(owners) if owner in known]
        x = {
            "bank": bank["x"][[list(known).index(owners[place]) for place in chosen]],
            "shop": shop["x"][::-1][chosen].copy(),
        }
    expected = load_run(folder).probabilities(x)[:, 1]
    for place, one in zip(chosen, expected.tolist(), strict=True):
        assert float(scores[rows[place]]) == pytest.approx(one, abs=1e-5)
    with pytest.raises(BadInput, match="--ids clinic: say which file holds the ids of the new rows"):
        predict(folder, out=tmp_path / "t.csv", features=words[:2])
