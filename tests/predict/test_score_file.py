"""Scores on disk: whole or not there, block by block, gone on with behind the last whole one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch import Tensor

from thinwire.align import normalize_ids
from thinwire.base.errors import BadInput
from thinwire.engine.models.losses import Outputs
from thinwire.engine.streams import Storage
from thinwire.job.id_table import IdTable, IdTexts
from thinwire.job.row_selection import RowSet
from thinwire.predict.charges import format_ranges, parse_ranges
from thinwire.predict.rows import digest_parts, join_tables, parse_row_numbers
from thinwire.predict.score_file import ScoreTask, Shard, write_scores
from thinwire.predict.scoring import ScoreFormat

BLOCK, ROWS = 100, 1050


def values(rows: Tensor) -> Tensor:
    """Something of each row that a float32 holds only just."""
    return torch.stack([rows.float() / 3, -rows.float() / 7], dim=1)


class Scoring:
    """Gives blocks; fails after so many."""

    def __init__(self, blocks: int) -> None:
        self.left = blocks
        self.asked: list[int] = []

    def __call__(self, rows: Tensor) -> Iterator[Tensor]:
        for start in range(0, len(rows), BLOCK):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            self.asked += rows[start : start + BLOCK].tolist()
            yield values(rows[start : start + BLOCK])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.predict.score_file.ASKED_AT_ONCE", BLOCK)


def asked(ids: bool = False, model: str = "m") -> ScoreTask:
    table = IdTable([f'he said "{row}", é' for row in range(ROWS)]) if ids else None
    return ScoreTask(np.arange(ROWS), model, ScoreFormat(Outputs.RAW), table)


def read(file: Path) -> dict[str, list[object]]:
    found = pyarrow.csv.read_csv(file) if file.suffix == ".csv" else pyarrow.parquet.read_table(file)
    return dict(found.to_pydict())


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".CSV"])
@pytest.mark.parametrize("ids", [False, True], ids=["rows", "ids"])
def test_every_float_comes_back(ending: str, ids: bool, tmp_path: Path) -> None:
    out = tmp_path / f"scores{ending}"
    told = write_scores(out, asked(ids), Scoring(99), lambda *_: None, resume=False)
    assert told["rows"] == ROWS
    found = read(out.rename(out.with_suffix(ending.lower())))
    key = [f'he said "{row}", é' for row in range(ROWS)] if ids else list(range(ROWS))
    assert found["id" if ids else "row"] == key
    expected = values(torch.arange(ROWS))
    for column in range(2):
        assert torch.equal(torch.tensor(found[f"output_{column}"], dtype=torch.float32), expected[:, column])
    assert [file.name for file in tmp_path.iterdir()] == [out.with_suffix(ending.lower()).name]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_ids_that_are_read_when_needed_make_the_same_file(ending: str, tmp_path: Path) -> None:
    """Byte for byte that of a list of texts, stopped and resumed or not."""
    texts = [f'he said "{row}", é' for row in range(ROWS)]
    listed = asked(ids=True)
    streamed = replace(listed, ids=IdTable(IdTexts.of(normalize_ids(texts))))
    files = [tmp_path / f"{name}{ending}" for name in ("listed", "streamed", "resumed")]
    write_scores(files[0], listed, Scoring(99), lambda *_: None, resume=False)
    write_scores(files[1], streamed, Scoring(99), lambda *_: None, resume=False)
    with pytest.raises(KeyboardInterrupt):
        write_scores(files[2], streamed, Scoring(3), lambda *_: None, resume=False)
    rest = Scoring(99)
    assert write_scores(files[2], streamed, rest, lambda *_: None, resume=True)["resumed_at"] == 3 * BLOCK
    assert rest.asked == list(range(3 * BLOCK, ROWS))
    assert len({file.read_bytes() for file in files}) == 1
    if ending == ".csv":
        first = '"id","output_0","output_1"\n"he said ""0"", é",0,-0\n"he said ""1"", é",0.33333334,-0.14285715\n'
        assert files[0].read_text().startswith(first)
    few = replace(streamed, rows=np.array([7, 3]))
    assert few.keys(few.rows) == [texts[7], texts[3]]
    assert few.heading() == replace(few, rows=np.array([3, 7])).heading() != streamed.heading()
    assert few.describe_order() != replace(few, rows=np.array([3, 7])).describe_order()


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_what_was_stopped_goes_on_behind_the_last_whole_block(ending: str, tmp_path: Path) -> None:
    whole, out = tmp_path / f"whole{ending}", tmp_path / f"scores{ending}"
    write_scores(whole, asked(), Scoring(99), lambda *_: None, resume=False)
    with pytest.raises(KeyboardInterrupt):
        write_scores(out, asked(), Scoring(4), lambda *_: None, resume=False)
    assert not out.exists()
    rest, seen = Scoring(99), []
    told = write_scores(out, asked(), rest, lambda done, _: seen.append(done), resume=True)
    assert told["resumed_at"] == 4 * BLOCK
    assert rest.asked == list(range(4 * BLOCK, ROWS))
    assert (seen[0], seen[-1]) == (4 * BLOCK, ROWS)
    assert out.read_bytes() == whole.read_bytes()


def test_what_was_stopped_goes_on_by_id_after_another_alignment(tmp_path: Path) -> None:
    """New rows are aligned anew when a prediction is resumed, which brings them into another order."""
    out = tmp_path / "scores.csv"
    with pytest.raises(KeyboardInterrupt):
        write_scores(out, asked(ids=True), Scoring(4), lambda *_: None, resume=False)
    order = np.random.default_rng(1).permutation(ROWS)
    before = asked(ids=True).ids
    assert before is not None
    again = ScoreTask(np.arange(ROWS), "m", ScoreFormat(Outputs.RAW), IdTable([before.ids[row] for row in order]))
    rest = Scoring(99)
    told = write_scores(out, again, rest, lambda *_: None, resume=True)
    assert told["resumed_at"] == 4 * BLOCK
    assert sorted(order[rest.asked].tolist()) == list(range(4 * BLOCK, ROWS))
    assert sorted(map(str, read(out)["id"])) == sorted(before.ids)


def test_a_process_killed_before_its_first_word_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "scores.csv.part").mkdir()
    told = write_scores(tmp_path / "scores.csv", asked(), Scoring(99), lambda *_: None, resume=True)
    assert told["resumed_at"] == 0


def test_a_prediction_that_was_not_ended_is_not_mixed_with_another(tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    with pytest.raises(KeyboardInterrupt):
        write_scores(out, asked(), Scoring(1), lambda *_: None, resume=False)
    with pytest.raises(BadInput, match="resume it with --resume, or remove"):
        write_scores(out, asked(), Scoring(99), lambda *_: None, resume=False)
    with pytest.raises(BadInput, match="another prediction \\(model differ"):
        write_scores(out, asked(model="other"), Scoring(99), lambda *_: None, resume=True)
    with pytest.raises(BadInput, match="key, rows differ"):
        write_scores(out, asked(ids=True), Scoring(99), lambda *_: None, resume=True)


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    out.write_text("mine")
    for wrong, says in (
        (out, "already exists"),
        (tmp_path / "scores.txt", ".csv or .parquet"),
        (tmp_path / "nowhere" / "scores.csv", "there is no folder"),
    ):
        with pytest.raises(BadInput, match=says):
            write_scores(wrong, asked(), Scoring(99), lambda *_: None, resume=False)
    assert out.read_text() == "mine"


def test_row_numbers_and_ranges() -> None:
    assert parse_row_numbers("3,10-12,8", 13).tolist() == [3, 10, 11, 12, 8]
    assert parse_row_numbers("11-", 13).tolist() == [11, 12]
    for wrong, says in (
        ("", "use row numbers"),
        ("a", "use row numbers"),
        ("-3", "use row numbers"),
        ("1,,2", "use row numbers"),
        ("5-3", "from the lower"),
        ("13", "numbered from 0 to 12"),
        ("0-13", "numbered from 0 to 12"),
        ("9" * 30, "use row numbers"),
        ("1,0-3", "a row twice"),
    ):
        with pytest.raises(BadInput, match=says):
            parse_row_numbers(wrong, 13)


@pytest.mark.parametrize("rows", [[0], [0, 1, 2], [5, 3, 4, 9], [7, 7, 8]])
def test_ranges_are_written_and_read(rows: list[int]) -> None:
    assert np.concatenate(parse_ranges(format_ranges(np.array(rows)))).tolist() == rows


def write_shard(out: Path, shard: str, task: ScoreTask, blocks: int = 99) -> dict[str, object]:
    return write_scores(out, task, Scoring(blocks), lambda *_: None, resume=True, shard=Shard.parse(shard))


@pytest.mark.parametrize("count", [1, 3, 10, 50, ROWS])
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_shards_in_any_order_become_the_file_of_one_process(count: int, ending: str, tmp_path: Path) -> None:
    whole, out = tmp_path / f"whole{ending}", tmp_path / f"scores{ending}"
    write_scores(whole, asked(), Scoring(99), lambda *_: None, resume=False)
    order = np.random.default_rng(0).permutation(count) + 1
    for number in order.tolist()[: 12 if count > 50 else None]:
        told = write_shard(out, f"{number}/{count}", asked())
    if count > 50:  # a row each: enough of them to see that none is empty
        assert told["rows"] == 1
        return
    assert told["missing_shards"] == []
    assert read(out) == read(whole)
    if ending == ".csv" or count <= ROWS // BLOCK:
        assert out.read_bytes() == whole.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([out.name, whole.name])


def test_a_killed_shard_goes_on_and_finished_ones_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    assert write_shard(out, "2/3", asked())["missing_shards"] == [1, 3]
    kept = Shard(2, 3).find_file(out).stat()
    with pytest.raises(KeyboardInterrupt):
        write_shard(out, "1/3", asked(), blocks=2)
    again = write_shard(out, "1/3", asked())
    assert (again["resumed_at"], again["missing_shards"]) == (2 * BLOCK, [3])
    done = write_shard(out, "2/3", asked(), blocks=0)  # asks for nothing
    assert done["resumed_at"] == done["rows"]
    found = Shard(2, 3).find_file(out).stat()
    assert (found.st_ino, found.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)  # it may have been read
    assert write_shard(out, "3/3", asked())["out"] == str(out)


def test_shards_of_two_predictions_are_not_joined(tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    write_shard(out, "1/2", asked())
    with pytest.raises(BadInput, match=r"00001-of-00002\.parquet belongs to another prediction"):
        write_shard(out, "2/2", asked(model="other"))
    assert not out.exists()
    Shard(1, 2).find_file(out).write_bytes(b"PAR1")
    with pytest.raises(BadInput, match="is not a readable shard; remove it"):
        write_shard(out, "1/2", asked())


@pytest.mark.parametrize("text", ["3", "0/4", "5/4", "1/0", "a/b", "1/2/3", "-1/4", "1/2000"])
def test_a_shard_that_there_is_not(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--shard"):
        write_shard(tmp_path / "scores.csv", text, asked())


@pytest.mark.parametrize("limit", [0, 1 << 30], ids=["in a file", "in memory"])
def test_joined_tables_are_the_same_in_a_file(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.predict.rows._PIECE", 7)
    parts = {"features": torch.rand(30, 3), "validation_features": None, "test_features": torch.rand(12, 3)}
    room = Storage(limit, tmp_path)
    joined = join_tables(RowSet.ALL, SimpleNamespace(**parts), room)
    expected = torch.cat([part for part in parts.values() if part is not None])
    assert torch.equal(joined, expected)
    assert digest_parts("head", joined) == digest_parts("head", expected)
    images = {name: None if part is None else part[:, :, None] for name, part in parts.items()}
    assert torch.equal(join_tables(RowSet.ALL, SimpleNamespace(**images), room), expected[:, :, None])
