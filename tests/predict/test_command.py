"""`thinwire predict`: in one process, between organisations, on new rows; and what a newcomer types wrongly."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from predict.halves import simulated_outputs, trained
from processes import DEADLINE
from thinwire.align.party import AligningParty
from thinwire.base.errors import BadInput
from thinwire.cli.predict import predict
from thinwire.job.party_view import read_party_view
from thinwire.net.grpc.service import Refused
from thinwire.predict.party_models import RunSource, align_new_rows
from training.party.parties import LABEL_PARTY, Place, Shape, made, ran

SVFL = Shape({"method": "svfl"}, ids=True)


Command = Callable[..., subprocess.CompletedProcess[str]]


def scores(file: Path) -> torch.Tensor:
    table = pyarrow.csv.read_csv(file).to_pydict()
    columns = [table[name] for name in table if name.startswith("probability_")]
    return torch.tensor(columns, dtype=torch.float32).T


def ids_of(file: Path) -> list[str]:
    return list(pyarrow.csv.read_csv(file).to_pydict()["id"])


def test_in_one_process(here: Command, tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    folder = trained(place)
    run, outputs = simulated_outputs(folder)
    done = here("predict", folder, "--out", "scores.csv", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == len(outputs)
    none = {"rows": 0, "of": len(outputs), "missing_at": {}, "only_here": 0}
    assert json.loads(done.stdout)["unmatched"] == dict.fromkeys(place.names, none)
    assert "no match" not in done.stderr
    assert torch.equal(scores(tmp_path / "scores.csv"), run.outputs.format_scores(outputs))
    with np.load(tmp_path / f"{LABEL_PARTY}.npz") as held:
        assert ids_of(tmp_path / "scores.csv") == list(held["id_test"])
    few = here("predict", folder, "--out", "few.csv", "--rows", "3,9-11", folder=tmp_path)
    assert few.returncode == 0, few.stderr
    assert torch.equal(scores(tmp_path / "few.csv"), run.outputs.format_scores(outputs)[[3, 9, 10, 11]])
    every = ids_of(tmp_path / "scores.csv")
    (tmp_path / "wanted.txt").write_text(f"{every[8]}\n\n {every[2]}\n")
    named = here("predict", folder, "--out", "named.csv", "--only", "wanted.txt", folder=tmp_path)
    assert named.returncode == 0, named.stderr
    assert ids_of(tmp_path / "named.csv") == [every[8], every[2]]
    assert torch.equal(scores(tmp_path / "named.csv"), run.outputs.format_scores(outputs)[[8, 2]])
    for number in (3, 1, 2):
        words = ("predict", folder, "--out", "joined.csv", "--shard", f"{number}/3", "--resume")
        part = here(*words, folder=tmp_path)
        assert part.returncode == 0, part.stderr
    assert "(shard 2/3 was the last one, and all are joined)" in part.stdout
    assert (tmp_path / "joined.csv").read_bytes() == (tmp_path / "scores.csv").read_bytes()


def test_between_organisations_after_a_training_between_organisations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = made(tmp_path, SVFL)
    ran(place)
    folder = trained(place)
    run, outputs = simulated_outputs(folder)
    out = tmp_path / "scores.parquet"
    told = together(place, out, capsys)
    found = pyarrow.parquet.read_table(out).to_pydict()
    assert torch.equal(
        torch.tensor([found["probability_0"], found["probability_1"]]).T, run.outputs.format_scores(outputs)
    )
    assert told[LABEL_PARTY]["rows"] == len(outputs)
    assert told["bank"]["questions"] == told["shop"]["questions"] == 1
    sent = sum(told[name]["bytes"] for name in place.feature_parties)
    assert told[LABEL_PARTY]["bytes"] == sent > 0
    for number in (2, 1):
        joined = tmp_path / "joined.parquet"
        part = together(place, joined, capsys, {LABEL_PARTY: {"shard": f"{number}/2"}})[LABEL_PARTY]
        assert part["missing_shards"] == ([1] if number == 2 else [])
    assert pyarrow.parquet.read_table(joined).equals(pyarrow.parquet.read_table(out))


def together(
    place: Place, out: Path, capsys: pytest.CaptureFixture[str], files: dict[str, dict[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """Every party's command, each in a thread; the label party's writes the scores."""
    errors: list[BaseException] = []

    def run(name: str) -> None:
        mine = out if name == LABEL_PARTY else None
        try:
            predict(place.job, name, mine, run=place.out(name), yes=True, as_json=True, **(files or {}).get(name, {}))
        except BaseException as error:  # noqa: BLE001  raised where the threads are joined
            errors.append(error)

    running = [Thread(target=run, args=(name,)) for name in place.names]
    for one in running:
        one.start()
    for one in running:
        one.join(DEADLINE)
    if errors:
        raise errors[0]
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {one["party"]: one for one in told}


def new_rows(place: Place) -> dict[str, Path]:
    """Each party's own people, some of whom all have, each in an order of its own."""
    rng = np.random.default_rng(7)
    files = {}
    for number, name in enumerate(place.names):
        ids = [f"new-{one}" for one in range(number, 20 + number)]
        order = rng.permutation(20)
        people = np.array([int(text.removeprefix("new-")) for text in ids])
        features = np.stack([np.sin(people * (number + 1) + step) for step in range(4)], axis=1)
        files[name] = place.folder / f"new-{name}.npz"
        np.savez(files[name], x=features[order], id=np.array(ids)[order])
    return files


def test_new_ids_are_aligned_privately_first(
    here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = made(tmp_path, SVFL)
    ran(place)
    files = new_rows(place)
    given: dict[str, dict[str, Any]] = {name: {"features": [str(files[name])]} for name in place.feature_parties}
    given[LABEL_PARTY] = {"ids": [str(files[LABEL_PARTY])]}
    told = together(place, tmp_path / "network.csv", capsys, given)
    unknown = {"rows": 2, "of": 20, "missing_at": {}, "only_here": None}
    for name in place.names:
        learned = {"missing_at": {"bank": 1, "shop": 2}} if name == LABEL_PARTY else {}
        assert told[name]["unmatched"] == {name: {**unknown, **learned}}
    assert set(ids_of(tmp_path / "network.csv")) == {f"new-{one}" for one in range(2, 20)}
    folder = trained(place)
    words: list[str] = []
    for name in place.feature_parties:
        words += ["--features", f"{name}={files[name]}"]
    done = here("predict", folder, "--out", "here.csv", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "bank: 1 of 20 rows have no match at the other parties and get no score (ids: 1 missing at shop)"
        in done.stderr
    )
    there = dict(zip(ids_of(tmp_path / "network.csv"), scores(tmp_path / "network.csv"), strict=True))
    alone = dict(zip(ids_of(tmp_path / "here.csv"), scores(tmp_path / "here.csv"), strict=True))
    for one, expected in there.items():
        assert torch.allclose(alone[one], expected, atol=1e-6)  # another alignment, so other places


def test_a_party_that_is_started_again_goes_on_with_the_alignment_of_new_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are at work by then, and would not align once more; ids that have changed are aligned anew."""
    place = made(tmp_path, SVFL)
    ran(place)
    files = new_rows(place)
    given: dict[str, dict[str, Any]] = {name: {"features": [str(files[name])]} for name in place.feature_parties}
    given[LABEL_PARTY] = {"ids": [str(files[LABEL_PARTY])]}
    together(place, tmp_path / "first.csv", capsys, given)
    align = AligningParty.align
    monkeypatch.setattr(AligningParty, "align", None)
    together(place, tmp_path / "again.csv", capsys, given)
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "first.csv").read_bytes()
    monkeypatch.setattr(AligningParty, "align", align)
    for file in files.values():
        with np.load(file) as held:
            np.savez(file, x=held["x"][1:], id=held["id"][1:])
    together(place, tmp_path / "fewer.csv", capsys, given)
    assert set(ids_of(tmp_path / "fewer.csv")) < set(ids_of(tmp_path / "first.csv"))
    own = read_party_view(place.job, "bank")
    with np.load(files["bank"]) as held:
        np.savez(files["bank"], x=held["x"][1:], id=held["id"][1:])
    monkeypatch.setattr(AligningParty, "align", _refused)
    with pytest.raises(BadInput, match=r"is at work already. This party's ids are new .*remove new-rows/"):
        align_new_rows(RunSource(own, place.out("bank")), files["bank"], None, lambda _: None)


def _refused(*_: Any) -> None:
    raise Refused("'clinic' is at work already")


def test_what_a_newcomer_types_is_answered_with_the_way_out(here: Command, tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    folder = trained(place)
    bad = tmp_path / "bad.npz"
    np.savez(bad, x=np.full((3, 4), np.nan), id=np.array(["a", "b", "c"]))
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, x=np.ones((3, 2)), id=np.array(["a", "b", "c"]))
    (tmp_path / "nobody.txt").write_text("nobody\n")
    with np.load(tmp_path / f"{LABEL_PARTY}.npz") as held:
        (tmp_path / "twice.txt").write_text(2 * f"{held['id_test'][0]}\n")
    cases: list[tuple[list[str | Path], str]] = [
        ([folder, "--out", "s.csv", "--only", "nobody.txt"], "'nobody': no row has this id"),
        ([folder, "--out", "s.csv", "--only", "nothing.txt"], "cannot be read"),
        ([folder, "--out", "s.csv", "--only", "twice.txt"], "names an id twice"),
        ([folder, "--name", LABEL_PARTY, "--out", "s.txt", "--ids", bad], ".csv or .parquet"),
        ([folder, "--out", "s.csv", "--only", "nobody.txt", "--rows", "1"], "use only one of them"),
        ([folder, "--out", "s.csv", "--set", "job.seed=1"], "--set needs --name"),
        ([folder], "--out is missing"),
        ([place.job, "--out", "s.csv"], "give a run folder, or --name PARTY"),
        ([tmp_path / "nothing", "--out", "s.csv"], "is not a run folder"),
        ([folder, "--out", "s.txt"], ".csv or .parquet"),
        ([folder, "--out", "s.csv", "--rows", "99"], "there are 16 rows"),
        ([folder, "--out", "s.csv", "--shard", "17"], "write which of how many"),
        ([folder, "--out", "s.csv", "--table", "tests"], "test, training or all"),
        ([folder, "--out", "s.csv", "--features", "bank"], "write PARTY=FILE"),
        ([folder, "--out", "s.csv", "--features", f"bank={bad}"], "shop is missing"),
        ([folder, "--out", "s.csv", "--features", f"bank={bad}", "--features", f"shop={bad}"], "holds NaN"),
        ([folder, "--out", "s.csv", "--features", f"bank={narrow}", "--features", f"shop={narrow}"], "shape [2]"),
        ([folder, "--name", "bnak"], "did you mean 'bank'?"),
        ([folder, "--name", "bank"], "nobody has approved this for 'bank'; use --yes"),
        ([folder, "--name", "bank", "--yes", "--out", "s.csv"], "belong to the label party"),
        ([place.job, "--name", "bank", "--yes"], "runs/job/bank is not a run folder"),
        ([folder, "--name", "bank", "--yes", "--features", "shop=x.npz"], "this is 'bank'"),
    ]
    for words, says in cases:
        done = here("predict", *words, folder=tmp_path)
        assert done.returncode == 2, (words, done.stderr)
        assert says in done.stderr.replace("\n", " "), (words, done.stderr)
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("s.*"))


@pytest.mark.parametrize("missing", ["bank", LABEL_PARTY])
def test_a_party_that_does_not_come_is_named(missing: str, here: Command, tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    place.document["network"]["wait_seconds"] = 2.0
    place.write("job.toml")
    folder = trained(place)
    me = LABEL_PARTY if missing == "bank" else "bank"
    words = ["--out", "s.csv"] if me == LABEL_PARTY else []
    done = here("predict", folder, "--name", me, "--yes", *words, folder=tmp_path)
    assert done.returncode == 1
    assert f"{missing!r} has sent nothing" in done.stderr
    assert "Traceback" not in done.stderr
