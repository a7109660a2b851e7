"""python tests/faults/soak.py [MINUTES]: random faults, one after another, over run after run.

Kills, stops, resets and partitions strike every second or so. Once in a few seconds the memory and the open
descriptors of every process are looked at. Printed at the end: hangs, wrong digests, and how memory and descriptors
went with the age of a process. Exit code 1 where something hung or differed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.proxy import DOWN, UP, Proxy
from faults.running import EVERYBODY, FEATURES, LABEL, JobKind, Process, Run, Site, running
from faults.tally import Tally

LONG = JobKind(epochs=600)
PAUSE_MS = 10
SETTLE_SECONDS = 300.0


@dataclass
class Watched:
    """Samples of one process: its age in seconds, resident kB, open descriptors."""

    name: str
    samples: list[tuple[float, int, int]] = field(default_factory=list)

    def trend(self) -> tuple[float, float]:
        """kB and descriptors an hour, from the second quarter on: the first is start-up."""
        tail = self.samples[len(self.samples) // 4 :]
        (age, memory, open_files), (later, more, files) = tail[0], tail[-1]
        hours = max(later - age, 1.0) / 3600
        return (more - memory) / hours, (files - open_files) / hours


class Soak:
    def __init__(self, minutes: float, seed: int) -> None:
        self.until = monotonic() + 60 * minutes
        self.choice = random.Random(seed)  # noqa: S311
        self.faults: Counter[str] = Counter()
        self.watched: dict[int, Watched] = {}
        self.runs = self.hangs = self.wrong = 0
        self._sampled = 0.0

    def one_run(self, folder: Path, expected: dict[str, str]) -> None:
        site = Site(folder, LONG)
        with running(site, Tally(None), PAUSE_MS) as run:
            run.note_sends()
            proxy = Proxy(site.port)
            for name in FEATURES:
                run.settings[name] = [proxy.setting]
            run.start_label_party_first()
            while monotonic() < self.until and run.round(LABEL) < LONG.rounds - 60:
                self._strike(run, proxy)
                self._wait(run, self.choice.uniform(0.5, 4.0))
            proxy.heal()
            run.pause_ms = 0
            for name in EVERYBODY:  # without the pauses the rest is quick
                run.kill(name)
                run.start(name)
            self._compare(run, expected)
            proxy.close()
        self.runs += 1

    def _strike(self, run: Run, proxy: Proxy) -> None:
        kind = self.choice.choices(["kill", "stop", "reset", "partition", "all"], [6, 2, 4, 2, 1])[0]
        name = self.choice.choice(EVERYBODY)
        self.faults[kind] += 1
        match kind:
            case "kill":
                run.kill(name)
                run.start(name)
            case "all":
                for one in EVERYBODY:
                    run.kill(one)
                run.start_all()
            case "stop":
                run.signal(name, signal.SIGSTOP)
                self._wait(run, self.choice.choice([0.3, 2.0, 11.0]))
                run.signal(name, signal.SIGCONT)
            case "reset":
                proxy.reset_after = self.choice.choice([None, self.choice.randrange(1, 20_000)])
                proxy.reset()
            case "partition":
                proxy.held = set(self.choice.choice([(UP, DOWN), (UP,), (DOWN,)]))
                self._wait(run, self.choice.choice([0.3, 2.0, 11.0]))
                proxy.heal()

    def _wait(self, run: Run, seconds: float) -> None:
        until = monotonic() + seconds
        while monotonic() < until:
            sleep(0.1)
            if monotonic() - self._sampled > 3:
                self._sampled = monotonic()
                for process in run.processes.values():
                    self._sample(run, process)

    def _sample(self, run: Run, process: Process) -> None:
        code = process.poll()
        if code is not None:
            if code != 0:
                print(f"{process.name} ended with {code}: {process.stderr[-400:]}", flush=True)
                self.wrong += 1
                run.start(process.name)
            return
        status = Path(f"/proc/{process.pid}/status").read_text()
        memory = int(status.partition("VmRSS:")[2].split()[0])
        open_files = len(os.listdir(f"/proc/{process.pid}/fd"))
        age = monotonic() - process.began
        self.watched.setdefault(process.pid, Watched(process.name)).samples.append((age, memory, open_files))

    def _compare(self, run: Run, expected: dict[str, str]) -> None:
        try:
            run.survives(expected, SETTLE_SECONDS)
        except AssertionError as error:
            hung = "has not ended" in str(error)
            self.hangs += hung
            self.wrong += not hung
            print(f"run {self.runs}: {error}", flush=True)

    def report(self) -> None:
        print(f"runs: {self.runs}, faults: {dict(self.faults)}, hangs: {self.hangs}, wrong: {self.wrong}")
        old = sorted(self.watched.values(), key=lambda one: -one.samples[-1][0])[:6]
        for one in old:
            age, memory, open_files = one.samples[-1]
            more_memory, more_files = one.trend()
            print(
                f"{one.name}: {age:.0f} s old, {memory / 1024:.0f} MB ({more_memory / 1024:+.1f} MB an hour), "
                f"{open_files} descriptors ({more_files:+.1f} an hour)"
            )


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    print(f"{minutes:g} minutes, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="thinwire-soak-") as folder:
        site = Site(Path(folder) / "undisturbed", LONG)
        with running(site, Tally(None)) as run:
            run.start_all()
            expected = run.finish(600)
        soak = Soak(minutes, seed)
        while monotonic() < soak.until:
            soak.one_run(Path(folder) / f"run-{soak.runs}", expected)
    soak.report()
    sys.exit(bool(soak.hangs or soak.wrong))


if __name__ == "__main__":
    main()
