"""`thinwire align` between organisations, by real messages over mutual TLS; and training on what it found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from processes import THINWIRE, Processes, run
from thinwire.align import (
    Alignment,
    NoOverlap,
    Terms,
    TooLittleOverlap,
    Workspace,
    normalize_ids,
    read_alignment,
    ristretto,
)
from thinwire.align.party import AligningParty
from thinwire.base.errors import BadInput, ThinwireError
from thinwire.job.party_view import read_party_view
from thinwire.net.grpc.service import NotYet, Refused
from thinwire.net.links.network_channel import PartyMissing
from training.party.parties import LABEL_PARTY, ROWS, Place, Shape, made, ran, simulated

SVFL = {"method": "svfl"}


def place(folder: Path, parties: int = 2, **network: Any) -> Place:
    """Every party lacks some rows, has some of its own, and its rows in an order of its own."""
    found = made(folder, Shape(SVFL, ids=True, tests=False, parties=parties, job={"batch_size": 8}))
    rng = np.random.default_rng(4)
    for number, name in enumerate(found.names):
        with np.load(folder / f"{name}.npz") as held:
            tables = {key: held[key] for key in held.files if "test" not in key}
        kept = rng.permutation(np.delete(np.arange(ROWS), [2 * number, 2 * number + 1]))
        np.savez(folder / f"{name}.npz", **{key: table[kept] for key, table in tables.items()})
    for section in [*found.document["party"], found.document["label_party"]]:
        section.pop("test_ids")
        section["alignment"] = f"{section['name']}.alignment"
    found.document["network"] |= network
    found.write("job.toml")
    return found


def ids_of(found: Place, name: str) -> list[str]:
    with np.load(found.folder / f"{name}.npz") as held:
        return [str(one) for one in held["id"]]


def aligned(
    found: Place,
    ids: dict[str, list[str]],
    terms: Terms | None = None,
    what: Callable[[str], str] = lambda _: "training rows",
    rooms: dict[str, Workspace] | None = None,
) -> dict[str, Alignment | ThinwireError]:
    """All parties as threads; what each of them came to."""
    results: dict[str, Alignment | ThinwireError] = {}

    def run(name: str) -> None:
        party = AligningParty(read_party_view(found.job, name).network_party, what(name), lambda _: None)
        try:
            with ristretto(1) as backend:
                mine, room = normalize_ids(ids[name]), (rooms or {}).get(name)
                results[name] = party.align(mine, backend, terms or Terms(), lambda *_: None, workspace=room)
        except ThinwireError as error:
            results[name] = error

    threads = [Thread(target=run, args=(name,)) for name in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert set(results) == set(ids)
    return results


def test_all_end_with_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    found = place(tmp_path, parties=3)
    ids = {name: ids_of(found, name) for name in found.names}
    results = aligned(found, ids)
    rows: list[list[str]] = []
    for name, alignment in results.items():
        assert isinstance(alignment, Alignment), alignment
        rows.append([ids[name][row] for row in alignment.rows])
    assert all(one == rows[0] for one in rows)
    assert set(rows[0]) == set.intersection(*(set(mine) for mine in ids.values()))
    assert {one.digest for one in results.values() if isinstance(one, Alignment)} == {
        next(one.digest for one in results.values() if isinstance(one, Alignment))
    }


def test_large_sets_go_in_buckets_that_are_kept(tmp_path: Path) -> None:
    found = place(tmp_path)
    ids = {name: ids_of(found, name) for name in found.names}
    rooms = {name: Workspace(tmp_path / f"{name}.buckets", 8, 8) for name in found.names}
    results = aligned(found, ids, rooms=rooms)
    kept = (rooms["bank"].folder / "00000.match").read_bytes()
    again = aligned(found, ids, rooms=rooms)
    assert (rooms["bank"].folder / "00000.match").read_bytes() == kept
    for both in (results, again):
        rows = [[ids[name][row] for row in one.rows] for name, one in both.items() if isinstance(one, Alignment)]
        assert len(rows) == len(found.names)
        assert all(one == rows[0] for one in rows)
        assert set(rows[0]) == set.intersection(*(set(mine) for mine in ids.values()))


def test_no_overlap_and_too_little_are_said_at_every_party(tmp_path: Path) -> None:
    found = place(tmp_path)
    apart = {name: [f"{name} {number}" for number in range(9)] for name in found.names}
    assert {type(one) for one in aligned(found, apart).values()} == {NoOverlap}
    few = {name: [*mine, "shared"] for name, mine in apart.items()}
    results = aligned(found, few, Terms(min_overlap=2))
    assert {type(one) for one in results.values()} == {TooLittleOverlap}


def test_parties_that_want_something_else_are_refused(tmp_path: Path) -> None:
    found = place(tmp_path, wait_seconds=4.0)
    ids = {name: ids_of(found, name) for name in found.names}
    results = aligned(found, ids, what=lambda name: "test rows" if name == "bank" else "training rows")
    assert isinstance(results["bank"], Refused)
    assert "'bank' aligns with what test rows, this side with training rows" in str(results["bank"])
    assert isinstance(results[LABEL_PARTY], PartyMissing)


def test_a_party_that_is_through_is_told_to_wait_for_the_others(tmp_path: Path) -> None:
    """It has come to predict while the label party still aligns with somebody slower."""
    found = place(tmp_path)
    label = AligningParty(read_party_view(found.job, LABEL_PARTY).network_party, "rows to score", lambda _: None)
    bank = AligningParty(read_party_view(found.job, "bank").network_party, "rows to score", lambda _: None)
    with pytest.raises(Refused, match="wants to train"):
        label.admit("bank", {**_hello(bank), "purpose": "prediction"})
    with pytest.raises(KeyError):  # there is no link yet: it was admitted
        label.admit("bank", _hello(bank))
    with pytest.raises(NotYet, match="still aligns with the others; 'bank' is already at the next step"):
        label.admit("bank", {**_hello(bank), "purpose": "prediction"})


def _hello(party: AligningParty) -> dict[str, Any]:
    return party.welcome(LABEL_PARTY)


def test_a_missing_party_is_named(tmp_path: Path) -> None:
    found = place(tmp_path, wait_seconds=1.0)
    ids = {name: ids_of(found, name) for name in found.names if name != "shop"}
    results = aligned(found, ids)
    assert isinstance(results[LABEL_PARTY], PartyMissing)
    assert "'shop'" in str(results[LABEL_PARTY])


def test_a_party_that_is_started_again_ends_the_attempt(tmp_path: Path) -> None:
    found = place(tmp_path)
    party = AligningParty(read_party_view(found.job, LABEL_PARTY).network_party, "training rows", lambda _: None)
    hello = AligningParty(read_party_view(found.job, "bank").network_party, "training rows", lambda _: None).welcome(
        LABEL_PARTY
    )
    again = {**hello, "instance": "another"}
    with party._connected(tmp_path / "links", 1 << 20):
        party.admit("bank", hello)
        party.admit("bank", hello)
        with pytest.raises(Refused, match="'bank' was restarted during the alignment"):
            party.admit("bank", again)
        with pytest.raises(Refused, match="restarted"):
            party._interrupted()


# The command ------------------------------------------------------------------------------------------------------


def test_from_ids_to_a_model_in_one_process_and_between_organisations(tmp_path: Path) -> None:
    """The same rows, so the same model, whichever way the two steps are taken."""
    found = place(tmp_path)
    before = run("train", str(found.job))
    assert before.returncode == 2
    assert "party.bank.alignment" in before.stderr
    assert "create it with `thinwire align`" in before.stderr
    done = run("align", str(found.job), "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rows"] == ROWS - 6
    assert told["ids"] == dict.fromkeys(found.names, ROWS - 2)
    assert told["to_add"] == []
    assert read_alignment(tmp_path / "bank.alignment").digest == told["digest"]
    there = simulated(found.job)
    summaries = ran(found)
    assert summaries[LABEL_PARTY]["train"] is not None
    assert summaries[LABEL_PARTY]["rounds"] == there.summary()["rounds"] == 12


def test_the_command_between_organisations(tmp_path: Path) -> None:
    found = place(tmp_path)
    words = ["align", str(found.job), "--yes", "--workers", "1", "--json"]
    with Processes() as started:
        running = [started.command([THINWIRE, *words, "--name", name], tmp_path) for name in found.names]
        assert len({process.summary()["digest"] for process in running}) == 1
    assert len(simulated(found.job).history) > 1


def test_nothing_is_read_before_it_is_approved(tmp_path: Path) -> None:
    found = place(tmp_path)
    (tmp_path / "bank.npz").unlink()
    asked = run("align", str(found.job), "--name", "bank")
    assert asked.returncode == 2
    assert "nobody has approved this for 'bank'; use --yes" in asked.stderr
    assert "bank learns how many ids clinic brings, and which of its own ids all parties have" in asked.stderr


# Ids that cannot be -----------------------------------------------------------------------------------------------


def rewritten(found: Place, name: str, ids: list[Any]) -> None:
    with np.load(found.folder / f"{name}.npz") as held:
        tables = {key: held[key] for key in held.files}
    tables["id"] = np.array(ids)
    np.savez(found.folder / f"{name}.npz", **tables)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ids: [*ids[:-1], ids[0]], "1 id is repeated: row 46 repeats the id of row 1"),
        (lambda ids: [*ids[:-1], f" {ids[0]} "], "1 id is repeated"),
        (lambda ids: ["", *ids[1:]], "1 row has no id: row 1"),
        (lambda ids: ["  ", *ids[1:]], "1 row has no id: row 1"),
        (lambda ids: ["x" * 2_000_000, *ids[1:]], "the id of row 1 has 2000000 bytes"),
    ],
    ids=["twice", "twice but for spaces", "empty", "blank", "long"],
)
def test_ids_that_cannot_be_are_refused_with_their_row(
    change: Callable[[list[str]], list[str]], says: str, tmp_path: Path
) -> None:
    found = place(tmp_path)
    rewritten(found, "bank", change(ids_of(found, "bank")))
    refused = run("align", str(found.job))
    assert refused.returncode == 2
    assert says in refused.stderr
    assert "party.bank.ids" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "bank.alignment").exists()


def test_ids_written_otherwise_do_not_match_and_are_explained(tmp_path: Path) -> None:
    found = place(tmp_path)
    for name in found.names:
        numbers = range(len(ids_of(found, name)))
        rewritten(found, name, [f"{n:03d}" if name == "bank" else str(n) for n in numbers])
    done = run("align", str(found.job), "--workers", "1")
    assert done.returncode == 1
    assert "'007' is not '7'" in done.stderr


def test_unicode_forms_and_spaces_are_the_same_id(tmp_path: Path) -> None:
    found = place(tmp_path)
    for name, write in (("bank", "\u00e9{}"), ("shop", "e\u0301{} "), (LABEL_PARTY, " \u00e9{}")):
        rewritten(found, name, [write.format(n) for n in range(len(ids_of(found, name)))])
    done = run("align", str(found.job), "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == ROWS - 2


def test_a_table_that_changed_since_is_refused(tmp_path: Path) -> None:
    found = place(tmp_path)
    assert run("align", str(found.job), "--workers", "1").returncode == 0
    rewritten(found, "bank", list(reversed(ids_of(found, "bank"))))
    for command in (["train", str(found.job)], ["party", str(found.job), "--name", "bank", "--yes"]):
        refused = run(*command)
        assert refused.returncode == 2
        assert "the ids of 'bank' differ from those that were aligned" in refused.stderr


def test_alignments_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    found = place(tmp_path)
    assert run("align", str(found.job), "--workers", "1").returncode == 0
    old = (tmp_path / "shop.alignment").read_bytes()
    assert run("align", str(found.job), "--workers", "1").returncode == 0
    (tmp_path / "shop.alignment").write_bytes(old)
    refused = run("train", str(found.job))
    assert refused.returncode == 2
    assert "are of two alignments; run `thinwire align` again" in refused.stderr
    (tmp_path / "shop.alignment").write_bytes((tmp_path / "bank.alignment").read_bytes())
    refused = run("train", str(found.job))
    assert "is the alignment of 'bank', not of 'shop'" in refused.stderr
    found.document["party"][1].pop("alignment")
    found.write("job.toml")
    refused = run("train", str(found.job))
    assert "party.shop.alignment is missing" in refused.stderr


def test_the_errors_are_ours() -> None:
    assert issubclass(NoOverlap, ThinwireError)
    assert not issubclass(NoOverlap, BadInput)


def test_a_message_has_few_bytes(tmp_path: Path) -> None:
    found = place(tmp_path)
    party = AligningParty(read_party_view(found.job, LABEL_PARTY).network_party, "training rows", lambda _: None)
    party.own = replace(party.own, wait_seconds=0.0)
    caps: list[int] = []
    party._gather = lambda: caps.extend(link.max_body for link in party._links.values())  # type: ignore[method-assign]
    with ristretto(1) as backend, pytest.raises(ThinwireError):
        party.align(normalize_ids(["a", "b"]), backend, Terms(), lambda *_: None)
    assert caps == 2 * [(1 << 25) + 2 * 64]
