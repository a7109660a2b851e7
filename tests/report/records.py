"""Small records of runs, real and made up."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

import thinwire as tw
from thinwire.report.record import (
    Evaluation,
    Heartbeat,
    LedgerEntry,
    PartyInfo,
    PartyTime,
    Quality,
    RunInfo,
    RunRecord,
    SvflRound,
)
from thinwire.report.rendering import chart_script

EVIL = '<script>alert("1")</script>'
VOID = {"meta", "link", "br", "hr", "img", "input", "rect", "line", "circle", "polyline", "polygon", "path"}


def small_job(recipe: Any = None, **settings: Any) -> tw.Job:
    """Two parties, two classes, 60 rows and 30 test rows."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(90, 6, generator=rng)
    y = (x.sum(dim=1) > 0).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parties = [
            tw.FeatureParty(name, x[:60, part], torch.nn.Linear(3, 4), x[60:, part])
            for name, part in (("bank", slice(3)), ("shop", slice(3, 6)))
        ]
        top = torch.nn.Linear(4, 2)
    given = {"batch_size": 20, "epochs": 3, **settings}
    label = tw.LabelParty("clinic", y[:60], top, y[60:])
    return tw.Job(parties, label, recipe or tw.methods.celu(capacity=2, reuse=3), **given)


def made_up(name: str = "run", seed: int = 0, method: str = "thin", evil: str = "", rounds: int = 12) -> RunRecord:
    """One with something of everything; `evil` stands wherever a run has words of its own."""
    bank, clinic = f"bank{evil}", f"clinic{evil}"
    about = RunInfo(
        method=method + evil,
        label_party=clinic,
        parties=(
            PartyInfo(
                name=bank,
                role="feature",
                columns=f"3{evil}",
                rows=60,
                width=4,
                model=f"MLP{evil}",
                optimizer=f"SGD{evil}",
            ),
            PartyInfo(name=clinic, role="label", rows=60, test_rows=30, model="Linear", parameters=10),
        ),
        axes={"what travels": f"embeddings{evil}", "when": "every batch"},
        recipe_digest=f"abc{evil}",
        rows=60,
        test_rows=30,
        rounds=rounds,
        rounds_per_epoch=3,
        seed=seed,
        metrics=(f"accuracy{evil}",),
        better={f"accuracy{evil}": 1, "loss": -1},
        target=(f"accuracy{evil}", 0.7),
        who_sees={bank: (f"its derivative{evil}",)},
        protection=f"no noise{evil}",
        svfl_round=SvflRound(up=1000.0, down=1000.0),
        environment={"thinwire": f"0{evil}"},
        started=f"2026-01-01T00:00:00+00:00{evil}",
    )
    events = tuple(
        Evaluation.model_validate(
            {
                "round": number,
                "epoch": number / 3,
                "train": {"loss": 1 / (1 + number)},
                "test": {"loss": 1 / (1 + number), f"accuracy{evil}": number / (number + 2) + seed / 100},
                "bytes": {"up": 100 * number, "down": 50 * number, "total": 150 * number},
                "seconds": number / 10,
                "link_seconds": number / 5,
                "diagnostics": {bank: {"cosine_quantiles": [0.1, 0.2, 0.5, 0.8, 0.9]}, "distortion": {bank: 1.0}},
            }
        )
        for number in range(0, rounds + 1, 3)
    )
    heartbeat = Heartbeat(
        time="2026-01-01T00:00:01+00:00",
        since=0,
        round=rounds,
        rounds=rounds,
        seconds=1.0,
        clock="link",
        parties={
            bank: PartyTime(
                spent={"compute": 0.3, "local": 0.1, "wait": 0.6, "send": 0.2},
                stretches=(("compute", 0.0, 0.01), ("wait", 0.01, 0.04), ("send", 0.01, 0.02)),
            )
        },
        traffic=(
            (bank, clinic, "EMBEDDING", 100 * rounds, rounds),
            (clinic, bank, "DERIVATIVE", 50 * rounds, rounds),
        ),
    )
    observer = {"observer": "label_party", "releases_epsilon": 1.5, "end_to_end_epsilon": "infinity"}
    return RunRecord(
        name=name + evil,
        about=about,
        events=events,
        ledger=(
            LedgerEntry(sender=bank, receiver=clinic, kind=f"EMBEDDING{evil}", bytes=100 * rounds, messages=rounds),
            LedgerEntry(sender=clinic, receiver=bank, kind="DERIVATIVE", bytes=50 * rounds, messages=rounds),
        ),
        heartbeats=(heartbeat,),
        quality=Quality(
            task="binary",
            rows=30,
            round=rounds,
            confusion=((10, 5), (3, 12)),
            classes=(f"well{evil}", "ill"),
            calibration=((0.2, 0.25, 15), (0.8, 0.7, 15)),
            calibration_error=0.07,
            roc=((0, 0), (0.2, 0.7), (1, 1)),
            auc=0.78,
        ),
        privacy=(
            {
                "party": bank,
                "delta": 1e-5,
                "observers": [observer],
                "budget": {"epsilon": 8.0, "observer": "label_party", "spent": 2.0},
                "not_protected": [f"labels{evil}"],
                "holds_only_if": [],
            },
        ),
        repeat=(f"thinwire train {name}{evil}",),
        digests={f"bank.features{evil}": f"123{evil}"},
        job_text=f"[job]\n# {evil}\n",
    )


class Page(HTMLParser):
    """Reads a page: every tag is closed in its turn; what it refers to, its ids, its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag, f"</{tag}> in the wrong place, line {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def ids(self) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get("id")) is not None]


def refers_outside(page: Page) -> list[str]:
    """Whatever a browser would fetch, or lead to, from elsewhere."""
    found = []
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
            value = attributes.get(name)
            if value is not None and not value.startswith(("#", "data:")):
                found.append(f"<{tag} {name}={value}>")
    return found


def folder_of(run_dir: Path) -> list[str]:
    return sorted(one.name for one in run_dir.iterdir())


def assert_our_script_alone(html: str) -> None:
    """One script, which the page's own policy names by its digest: nothing else would run."""
    script = chart_script()
    assert html.count("<script") == html.count(f"<script>{script}</script>") == 1
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html
