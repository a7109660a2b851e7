"""A rank reads its own rows where the files allow it; together the ranks hold what one process reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from job.small import JOB, ROWS, TESTS, write_job
from thinwire.align import intersect, write_alignment
from thinwire.base.errors import BadInput
from thinwire.data.readers.large_table import LargeTable, write_arrow
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.job_loader import LabelData
from thinwire.job.job_snapshot import digest_tables
from thinwire.job.party_view import read_party_view
from thinwire.training.ranks.rank_share import load_share
from thinwire.training.ranks.ranks import Ranks

NAMES = ["a", "b", "c"]


def table(rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return pa.table({name: rng.normal(size=rows).astype(np.float32) for name in [*NAMES, "spare"]})


@pytest.fixture(params=["parquet", "arrow", "npz", "aligned parquet"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Bank's columns in a file of some kind."""
    kind = request.param.split()[-1]
    text = JOB
    for key, rows in (("x", ROWS), ("x_test", TESTS)):
        held, file = table(rows, rows), tmp_path / f"{key}.{kind}"
        if kind == "parquet":
            pq.write_table(held, file, row_group_size=10)
        elif kind == "arrow":
            write_arrow(file, [held])
        source = f'{{ file = "{key}.{kind}", all_but = ["spare"] }}'
        text = text if kind == "npz" else text.replace(f'{{ file = "bank.npz", key = "{key}" }}', source)
    if request.param.startswith("aligned"):
        ids = [f"p{row}" for row in range(ROWS)]
        (tmp_path / "ids.csv").write_text("id\n" + "\n".join(ids) + "\n")
        found = intersect({"bank": ids, "clinic": ids[10:80][::-1]}, "clinic")
        write_alignment(tmp_path / "bank.alignment", found["bank"])
        more = 'ids = { file = "ids.csv", column = "id" }\nalignment = "bank.alignment"\n'
        text = text.replace('name = "bank"\n', f'name = "bank"\n{more}')
    return write_job(tmp_path, text)


@pytest.mark.parametrize("size", [2, 3])
def test_together_the_ranks_hold_what_one_process_reads(job: Path, size: int) -> None:
    own = read_party_view(job, "bank")
    whole = own.load_features()
    shares = [load_share(own, Ranks(rank, size)) for rank in range(size)]
    assert torch.equal(torch.cat([share.own_rows()[0] for share in shares]), whole.features)
    assert torch.equal(torch.cat([share.own_rows()[1][HeldOut.TEST] for share in shares]), whole.test_features)
    for share in shares:
        assert share.group.rows == len(whole.features)
        assert share.group.held_out_rows == {which: len(one) for which, one in whole.held_out.items()}
        same = zip(share.bottom.parameters(), whole.bottom.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in same)
        assert share.digests(own.me) == digest_tables(
            own.me, whole
        )  # a run may go on with another number of processes


def test_a_rank_reads_no_others_rows(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = read_party_view(job, "bank")
    taken: list[int] = []
    take = LargeTable.take

    def watched(self: LargeTable, rows: Any) -> Any:
        taken.extend(rows.tolist())
        return take(self, rows)

    monkeypatch.setattr(LargeTable, "take", watched)
    share = load_share(own, Ranks(1, 4))
    if not taken:  # read whole
        assert own.section.features is not None
        assert str(own.section.features.file).endswith(".npz")
        return
    features, held_out = share.own_rows()
    most = len(features) + len(held_out[HeldOut.TEST])
    assert len(set(taken)) <= most + 6  # and the first few of both, for the model's sizes


def test_what_cannot_be_read_is_said_with_the_field(job: Path, tmp_path: Path) -> None:
    own = read_party_view(job, "bank")
    if own.section.features is not None and str(own.section.features.file).endswith(".parquet"):
        held = table(ROWS, ROWS).to_pydict()
        held["b"][30] = float("nan")
        pq.write_table(pa.table(held), tmp_path / "x.parquet")
        with pytest.raises(BadInput, match=r"party\.bank\.features: .*column 'b', row 31 holds NaN"):
            _ = [load_share(own, Ranks(rank, 2)) for rank in range(2)]
        (tmp_path / "x.parquet").write_bytes(b"no")
        with pytest.raises(BadInput, match=r"party\.bank\.features: .*not a Parquet file"):
            load_share(own, Ranks(0, 2))


def test_the_label_party_keeps_its_labels_and_shares_its_features(tmp_path: Path) -> None:
    features = 'features = { file = "bank.npz", key = "x" }\ntest_features = { file = "bank.npz", key = "x_test" }'
    job = write_job(tmp_path, JOB + features + '\nmodel = { name = "mlp", hidden = [8], width = 4 }\n')
    own = read_party_view(job, "clinic")
    whole = own.load_label_data()
    shares = [load_share(own, Ranks(rank, 3)) for rank in range(3)]
    assert whole.features is not None
    assert torch.equal(torch.cat([share.own_rows()[0] for share in shares]), whole.features)
    assert isinstance(shares[0].data, LabelData)
    assert torch.equal(shares[0].data.labels, whole.labels)
    assert shares[0].digests(own.me) == digest_tables(own.me, whole)
    first, held_out = shares[0].group.select_first(whole.features, {HeldOut.TEST: whole.features[:7]})
    assert torch.equal(first, shares[0].own_rows()[0])
    assert held_out[HeldOut.TEST].shape == (7, 3)  # of 32 test rows rank 0 has 10
