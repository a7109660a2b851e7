"""What must hold of every random job: in this process, killed, over the network, with a party on two processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from unittest import mock

import torch
from hypothesis import assume, reject
from safetensors.torch import load_file

import thinwire as tw
from engine.identities.small import same_models, without_times
from faults.faulty import Plan
from processes import DEADLINE, THINWIRE, Process, Processes
from thinwire.base.errors import ThinwireError
from thinwire.engine.channel.base import Message
from thinwire.engine.channel.simulated import Simulation
from thinwire.engine.privacy.accounting.ledger import TrainedOnRawRows
from thinwire.engine.wire.frame import Frame, pack_frame
from thinwire.job.job import Job
from thinwire.job.job_loader import load_job
from thinwire.lab.ablation.ablation_runs import train_centrally
from thinwire.storage.private_state import PrivateState
from thinwire.training.party.feature_role import derive_run_secret
from thinwire.training.result import Result
from thinwire.training.simulator import own_secret
from training.party.parties import LABEL_PARTY, PartyProcesses, Place, free_port, left_events, left_models
from training.party.test_same_as_simulated import require_same as require_same_over_the_network
from training.random_jobs import SECRET, RandomJob
from training.random_models import ROUNDS_OTHERWISE

NONCE = "5" * 32  # of a run: with the parties' secrets, their private noise follows from it
REFUSED = (1, 2)  # exit codes with a sentence


class Killed(Exception):
    """What ends a run in the middle."""


def require_same(here: Result, there: Result, what: str) -> None:
    assert same_models(here, there), what
    assert without_times(here.history) == without_times(there.history), what
    assert here.ledger.entries() == there.ledger.entries(), what


# In this process --------------------------------------------------------------------------------------------------


def check_random_job(given: RandomJob, killed_at: Sequence[int], folder: Path) -> None:
    """Repeatable, resumable, counted as it was framed, svfl like a plain loop, scores without company; or refused."""
    run = folder / "run"
    first = _train_counting(given.build)
    again = _train_or_refuse(given.build)
    if isinstance(first, str) or isinstance(again, str):
        assert first == again
        return
    require_same(again, first, "repeated")
    require_same(_train_interrupted(given, killed_at, run), first, f"killed at {killed_at}")
    if given.recipe == {"method": "svfl"} and not given.kinds & ROUNDS_OTHERWISE:
        _check_against_plain_loop(given, first)
    if given.recipe["method"] != "pbm":  # whose noise is drawn anew for each question
        _check_scores_alone(given, run)


def _train_or_refuse(build: Callable[[], Job]) -> Result | str:
    """A result, or our own error in words; any other error is a defect, and is raised."""
    try:
        return tw.train(build(), [])
    except ThinwireError as error:
        return f"{type(error).__name__}: {error}"


def _train_counting(build: Callable[[], Job]) -> Result | str:
    """The same; the ledger must have counted every frame."""
    frames: Counter[tuple[str, str, str]] = Counter()
    post = Simulation._post

    def count(self: Simulation, message: Message) -> None:
        frame = Frame(1, 0, 1, message.kind, message.round, 0, message.body)
        frames[message.sender, message.receiver, message.kind.name] += len(pack_frame(frame))
        post(self, message)

    with mock.patch.object(Simulation, "_post", count):
        found = _train_or_refuse(build)
    if isinstance(found, Result):
        rows = {(row["sender"], row["receiver"], row["kind"]): row["bytes"] for row in found.ledger.entries()}
        assert rows == frames
    return found


def _train_interrupted(given: RandomJob, killed_at: Iterable[int], folder: Path) -> Result:
    resume = False
    for round in killed_at:
        try:
            return tw.train(given.build(), [], out=folder, resume=resume, on_round=_end_at(round))
        except Killed:
            resume = True
    return tw.train(given.build(), [], out=folder, resume=resume)


def _end_at(round: int) -> Callable[[int], None]:
    def end(done: int) -> None:
        if done == round:
            raise Killed

    return end


def _check_against_plain_loop(given: RandomJob, result: Result) -> None:
    made = given.build()
    if isinstance(made.training, TrainedOnRawRows) and result.history[-1]["round"] == given.rounds:
        train_centrally(made)
        for name, module in made.modules().items():
            for key, tensor in module.state_dict().items():
                assert torch.equal(tensor, result.models[name].state_dict()[key]), f"{name}: {key}"


def _check_scores_alone(given: RandomJob, folder: Path) -> None:
    made = given.build()
    features = {party.name: party.features for party in made.everyone if party.features is not None}
    run = tw.load_run(folder, job=made)
    together, tables = run.predict(features), run.check_tables(features)
    for row in (0, given.rows - 1):
        (alone,) = run.score_rows(tables, torch.tensor([row]))
        assert torch.equal(alone[0], together[row]), f"row {row} alone"


# In a process of its own, killed ----------------------------------------------------------------------------------


def check_killed(given: RandomJob, points: Sequence[Plan], folder: Path) -> None:
    """`thinwire train` dies at the points it comes to, and is resumed: the same run. Refused jobs do not count."""
    place = given.write(folder)
    there = _train_or_refuse(lambda: _load(place))
    out, deaths = folder / "run", 0
    with Processes() as started:
        for plan in (*points, []):
            resume = ["--resume"] if (out / "data.json").exists() else []
            words: list[str | Path] = [THINWIRE, "train", place.job, "--out", out, "--json", *resume]
            process = started.command(words, folder, faults=[{"noise_secret": SECRET.hex()}, *plan])
            if process.code() != -9:
                break
            deaths += 1
        if isinstance(there, str):
            assert process.code() in REFUSED, process.stderr
            _require_sentence(process)
            reject()
        assert process.code() == 0, process.stderr
    _require_same_folder(out, there)
    assume(deaths)


def _load(place: Place) -> Job:
    job = load_job(place.job)
    job.noise_secret = SECRET
    return job


def _require_sentence(process: Process) -> None:
    assert process.stderr.strip(), "it says nothing"
    assert "Traceback" not in process.stderr, process.stderr


def _require_same_folder(out: Path, there: Result) -> None:
    for name, module in there.models.items():
        kept = load_file(out / "models" / f"{name}.safetensors")
        expected = module.state_dict()
        assert kept.keys() == expected.keys()
        assert all(torch.equal(kept[key], tensor) for key, tensor in expected.items()), name
    assert json.loads((out / "ledger.json").read_text()) == there.ledger.entries()
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert without_times(events) == without_times(json.loads(json.dumps(there.history)))


# Over the network -------------------------------------------------------------------------------------------------


def check_over_the_network(given: RandomJob, folder: Path) -> None:
    """Every party in a process of its own: the simulator's run."""
    _count_deaths(given, {}, folder)


def check_killed_parties(given: RandomJob, points: Mapping[str, Sequence[Plan]], folder: Path) -> None:
    """The same, where parties die at their points and are started again."""
    assume(_count_deaths(given, points, folder))


def _count_deaths(given: RandomJob, points: Mapping[str, Sequence[Plan]], folder: Path) -> int:
    place, there = _simulate(given, folder)
    with PartyProcesses() as started:
        parties = {name: _Restarting(started, place, name, points.get(name, ())) for name in place.names}
        _until_ended(parties, all_of_them=isinstance(there, Result))
    if isinstance(there, str):
        return 0
    require_same_over_the_network(place, there)
    return sum(party.deaths for party in parties.values())


def check_on_two_ranks(given: RandomJob, folder: Path) -> None:
    """The first party on two processes: what the simulator trains, up to rounding."""
    place, there = _simulate(given, folder)
    first, port = place.feature_parties[0], str(free_port())
    with PartyProcesses() as started:
        parties = {name: _Restarting(started, place, name) for name in place.names if name != first}
        for rank in ("0", "1"):
            more = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            parties[f"{first}, rank {rank}"] = _Restarting(started, place, first, more=more)
        _until_ended(parties, all_of_them=isinstance(there, Result))
    if isinstance(there, Result):
        assert [event["round"] for event in left_events(place)] == [event["round"] for event in there.history]
        models = left_models(place)
        for name, module in there.models.items():
            for key, tensor in module.state_dict().items():
                torch.testing.assert_close(models[name][key], tensor, rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")


def _simulate(given: RandomJob, folder: Path) -> tuple[Place, Result | str]:
    """The job in files, and its run with the noise that the parties will draw."""
    place = given.write(folder)
    secrets = {name: own_secret(SECRET, name) for name in place.names}
    for name, secret in secrets.items():
        private = PrivateState.open(place.out(name))
        private.set_noise_secret(secret)
        private.set_run_nonce(NONCE)
    drawn = {name: derive_run_secret(secret, NONCE) for name, secret in secrets.items()}
    drawn[LABEL_PARTY] = secrets[LABEL_PARTY]  # who draws the nonce, in the folder where its secret is
    with mock.patch("thinwire.training.simulator.own_secret", lambda _, name: drawn[name]):
        return place, _train_counting(lambda: load_job(place.job))


class _Restarting:
    """A party that is started again when it was killed, once for each of its plans and once without."""

    def __init__(
        self,
        started: PartyProcesses,
        place: Place,
        name: str,
        plans: Sequence[Plan] = (),
        more: Mapping[str, str] | None = None,
    ) -> None:
        self._start = partial(started.party, place, name, more=more)
        self._plans = [*plans, []]
        self.deaths = -1
        self._go()

    def _go(self) -> None:
        self.deaths += 1
        self.process = self._start(faults=self._plans[self.deaths])

    def poll(self) -> int | None:
        """Its exit code, once it has come to its end."""
        code = self.process.poll()
        if code == -9 and self.deaths + 1 < len(self._plans):
            self._go()
            return None
        return code


def _until_ended(parties: Mapping[str, _Restarting], all_of_them: bool) -> None:
    """All end well, or one refuses and says why: the others may wait for it."""
    deadline = monotonic() + DEADLINE
    while True:
        codes = {name: party.poll() for name, party in parties.items()}
        wrong = [name for name, code in codes.items() if code]
        told = {name: party.process.stderr for name, party in parties.items()}
        if wrong:
            assert not all_of_them, told
            assert codes[wrong[0]] in REFUSED, told
            return _require_sentence(parties[wrong[0]].process)
        if None not in codes.values():
            assert all_of_them, f"nobody refused: {told}"
            return None
        assert monotonic() < deadline, told
        sleep(0.01)
