"""`train`: a job in this process, its parties simulated."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import cache, cached_property
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from thinwire.base.errors import BadInput, IncompatibleRecipe
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Message
from thinwire.engine.models.losses import Outputs
from thinwire.engine.privacy import SecureSum
from thinwire.engine.programs.parties import collect_metadata
from thinwire.engine.programs.program import EvaluationOutputs, Observers
from thinwire.engine.protocols.evaluation import ColumnAnswers, EvaluationVerdict, HeldOut
from thinwire.engine.schedule import CachedSteps, Overlap
from thinwire.job.checks import keeps_best
from thinwire.job.job import Job
from thinwire.report.progress import NotebookProgress, RunProgress, is_notebook
from thinwire.report.record import CoefficientTable, Evaluation, Quality
from thinwire.storage import layout
from thinwire.storage.json_file import dump_indented_json
from thinwire.storage.run_directory import RunDirectory
from thinwire.storage.run_facts import RunFacts
from thinwire.training.baselines import score_baselines
from thinwire.training.callbacks import Callback, RunStart, follow_run
from thinwire.training.coefficients import collect_fit, list_coefficients
from thinwire.training.importance import Ablation, FusedModel, embed_test_rows, measure_job_importance
from thinwire.training.program_factory import keep_threads
from thinwire.training.quality import assess_held_out
from thinwire.training.recording import RunRecorder, list_spending
from thinwire.training.result import Evaluator, Result, compute_scores, judge
from thinwire.training.run_info import describe_job
from thinwire.training.scorecards import list_scorecard
from thinwire.training.simulator import SimulatedParties


def train(
    job: Job,
    callbacks: Sequence[Callback] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[int], None] | None = None,
) -> Result:
    """Trains the job; the modules it was given are trained in place.

    `callbacks` get each evaluation as it is made; unless some are given, a progress bar follows the run on a terminal
    and in a notebook: `callbacks=[]` hides it. One that returns True stops the run after that evaluation, saved as a
    finished run (`stopped_by` is "callback"). A `Follower`, as the writers of `thinwire.integrations` are, hears of
    the beginning and the end too.
    `on_round` gets the number of rounds done after each. With `out`, a run directory is kept there, and
    `resume=True` goes on from the last evaluation that was saved, bit for bit. Ctrl-C ends after the present round.

    Args:
        job: what to train.
        callbacks: called with each evaluation; None shows a progress bar, [] nothing.
        out: folder of the run; nothing is kept without one.
        resume: go on from the last evaluation that was saved in `out`.
        on_round: called with the number of rounds done.

    Returns:
        History, bytes and models; the weights are those of the best evaluation on validation rows, or the last.

    Raises:
        BadInput: `resume` without `out`, or a folder that holds another job.
        IncompatibleRecipe: parts of the recipe that do not go together; the message says what to use instead.
        Diverged: the loss is no finite number any more.

    Examples:
        >>> import torch
        >>> bank = tw.FeatureParty("bank", features=torch.rand(32, 3), bottom=torch.nn.Linear(3, 2))
        >>> shop = tw.LabelParty("shop", labels=torch.arange(32) % 2, top=torch.nn.Linear(2, 2))
        >>> result = tw.train(tw.Job([bank], shop, tw.methods.thin(), epochs=1), callbacks=[])
        >>> result.bytes.total > 0
        True
    """
    _require_time(job)
    looking = _follow_by_line(job) if callbacks is None else callbacks
    key = None if job.encryption_key is None else Path(job.encryption_key)
    directory = None if out is None else RunDirectory(Path(out), key)
    if resume and directory is None:
        raise BadInput("resume needs the run directory: set out=")
    if directory is None or not resume or directory.is_unsaved():
        return _begin(job, looking, directory, on_round)
    directory.require_begun()
    with directory.alone():
        data, tensors = directory.load(job.digests(), [party.name for party in job.everyone])
        run = _Run(job, looking, directory, on_round, directory.noise_secret)
        run.resume(directory, data, tensors)
        with run.follow(), keep_threads(data.get("threads")):
            directory.mark_finished(False)
            return run.go()


def _require_time(job: Job) -> None:
    """Whoever fills the time that messages take needs messages that take time."""
    schedule = job.recipe.schedule
    if isinstance(schedule, CachedSteps) and schedule.overlap is Overlap.FILLING and job.link is None:
        raise IncompatibleRecipe(
            "overlap='filling' takes cached steps while messages are in transit; without a link, messages take no "
            "time in a simulated run and no step would be taken. Give the job a link, or use overlap=True"
        )


def _begin(
    job: Job, callbacks: Sequence[Callback], directory: RunDirectory | None, on_round: Callable[[int], None] | None
) -> Result:
    noise_secret = job.noise_secret or secrets.token_bytes(32)
    run = _Run(job, callbacks, directory, on_round, noise_secret)
    if directory is None:
        with run.follow():
            return run.go()
    with directory.alone(), run.follow():
        directory.begin(job.recipe.describe(), noise_secret, _facts(job, run.parties.widths))
        for party in job.everyone:
            directory.keep(party.name, collect_metadata(party))
        directory.write(layout.MODEL, dump_indented_json({"format": 1, **describe_models(job)}))
        return run.go()


def _follow_by_line(job: Job) -> Sequence[Callback]:
    """A line that follows the run, on a terminal or in a notebook; none where nobody looks."""
    in_notebook = is_notebook()
    if not in_notebook and not sys.stderr.isatty():
        return ()
    rounds = job.limit_rounds(job.check()).rounds
    return ((NotebookProgress if in_notebook else RunProgress)(job.recipe.name, rounds),)


def describe_models(job: Job) -> dict[str, Any]:
    """What a run's models need to be put together again: who is who, how embeddings meet, what comes out."""
    return {
        "feature_parties": list(job.names),
        "label_party": job.label_party.name,
        "fusion": job.label_party.fusion,
        "outputs": Outputs.of(job.label_party.loss).value,
    }


def _facts(job: Job, widths: Mapping[PartyName, int]) -> RunFacts:
    label = job.label_party
    return RunFacts(job.names, label.name, widths, label.fusion, begun_from=job.begun_from)


def _finite(value: float) -> float | None:
    """None for what a checkpoint and events.jsonl cannot hold: the run is about to say why it ends."""
    return value if isfinite(value) else None


class _Run:
    def __init__(
        self,
        job: Job,
        callbacks: Sequence[Callback],
        directory: RunDirectory | None,
        on_round: Callable[[int], None] | None,
        noise_secret: bytes,
    ) -> None:
        self.job = job
        self.directory = directory
        self._folder = None if directory is None else directory.folder
        self._result: Result | None = None
        self._callbacks = callbacks
        self._stopped_by: str | None = None
        self._history: list[Evaluation] = []
        self._outputs: dict[HeldOut, EvaluationOutputs] = {}  # of the model that is delivered
        self._seconds_before = 0.0
        self._gradient_at_0: float | None = None
        self._digests = cache(job.digests)
        self._keeps_best = keeps_best(job.recipe, job.settings, job.validation_rows)
        self._on_round = on_round
        storage = job.storage if directory is None else directory.storage(job.storage)
        metric = next(iter(job.metrics), "loss")
        columns = ColumnAnswers(metric, self._lose) if job.column_importance else None
        observers = Observers(self._at_rest, self._at_test, self._after_round, columns)
        self.parties = SimulatedParties(job, observers, noise_secret, storage)
        self._evaluator = Evaluator(
            job.label_party, job.metrics, self.parties.batches, self.parties.simulation.ledger
        )
        self._recorder = RunRecorder(
            self._folder,
            describe_job(job, self.parties.widths, self.parties.batches),
            {program.context.me: program.context.stopwatch for program in self.parties.programs},
            self.parties.simulation.ledger,
            lambda: list_spending(job.recipe, self._privacy),
            "real" if self.parties.simulation.clock is None else "link",
        )
        self._began = perf_counter()
        self._saved = self._began
        self._saving_seconds = 0.0

    def follow(self) -> AbstractContextManager[None]:
        begun = RunStart(self.job, self._folder, tuple(one.to_dict() for one in self._history))
        return follow_run(self._callbacks, begun, lambda: self._result)

    def go(self) -> Result:
        self._recorder.begin(self.parties.label.start)
        self._began = perf_counter()
        self.parties.run()
        interrupted = self.parties.control.stopping
        if interrupted and self.directory is not None:
            self._save(resting=False)
        delivered = self._deliver()
        if self.directory is not None:
            self.directory.finish(self.parties.simulation.ledger.entries(), self.job.modules())
            self.directory.mark_finished(not interrupted)
        result = Result(
            method=self.job.recipe.name,
            evaluations=self._history,
            ledger=self.parties.simulation.ledger,
            label_party=self.job.label_party.name,
            models=self.job.modules(),
            seconds=self._seconds(),
            metric=next(iter(self.job.metrics), "loss"),
            target=self.job.target,
            interrupted=interrupted,
            stopped_by=self._stopped_by,
            run_dir=self._folder,
            privacy=self._privacy(),
            delivered_round=delivered,
            coefficients=self._coefficients(),
            scorecards={party.name: rows for party in self.job.everyone if (rows := list_scorecard(party))},
        )
        self._recorder.look(self.parties.label.start)
        quality = result.quality = self._quality()
        record = self._recorder.record(self._history, quality, result.privacy, interrupted)
        result.record = replace(record, coefficients=tuple(result.coefficients.values()))
        self._recorder.keep(result.summary(), quality)
        if not interrupted:
            self._compare(result)
        self._result = result
        return result

    def _privacy(self) -> list[dict[str, Any]]:
        return [spending.ledger.summary() for spending in self.parties.spending.values()]

    def _coefficients(self) -> dict[PartyName, CoefficientTable]:
        """Of a regression, by party; kept beside the models."""
        if self.directory is not None:
            for party in self.job.everyone:
                self.directory.keep(party.name, collect_fit(party))
        tables = [table for party in self.job.everyone if (table := list_coefficients(party)) is not None]
        return {table.party: table for table in tables}

    def _deliver(self) -> Round:
        """From here on the models have the weights of the best evaluation; the last ones stay available by name."""
        best = self.parties.label.best.round
        if best is not None and self.directory is not None:
            with ExitStack() as averaged:
                for program in self.parties.programs:
                    averaged.enter_context(program.best.average_in())
                self.directory.keep_last(self.job.modules())
        for program in self.parties.programs:
            program.best.deliver()
        return self.parties.label.start if best is None else best

    def _quality(self) -> Quality | None:
        """On test rows; the threshold is chosen on validation rows."""
        return assess_held_out(self._outputs, self.job.label_party)

    def _compare(self, result: Result) -> None:
        """With baselines, and with itself without a party or a column. The run is kept already: Ctrl-C skips this."""
        tested = self._outputs.get(HeldOut.TEST)
        outputs = None if tested is None else tested.outputs
        if outputs is None or result.quality is None or result.record is None:
            return
        with suppress(KeyboardInterrupt):
            if self.job.baselines:
                result.baselines = score_baselines(self.job, result.quality.task, outputs)
            if self.job.settings.measures_importance:
                result.importance = measure_job_importance(self.job, self._ablation, self._measured_columns())
        if result.baselines or result.importance is not None:
            baselines = tuple(result.baselines)
            result.record = replace(result.record, baselines=baselines, importance=result.importance)
            self._recorder.keep(result.summary(), result.quality)

    @cached_property
    def _ablation(self) -> Ablation:
        """Of what the label party has received; that of a sum, or of a process before this one, is looked at."""
        tested = self._outputs.get(HeldOut.TEST)
        summed = isinstance(self.job.recipe.aggregation, SecureSum)
        received = embed_test_rows(self.job) if tested is None or summed else tested.embeddings
        names = [party.name for party in self.job.everyone if party.bottom is not None]
        model = FusedModel.of(self.job.label_party, self.job.metrics)
        return Ablation(model, dict(zip(names, received, strict=True)))

    def _lose(self, party: PartyName, h: Tensor) -> float:
        return self._ablation.lose(party, h)

    def _measured_columns(self) -> dict[PartyName, Mapping[str, float]]:
        found = {program.context.me: program.column_losses for program in self.parties.features}
        return {party: losses.lost for party, losses in found.items() if losses is not None}

    def _after_round(self, done: int) -> None:
        self._recorder.round(done)
        if self._on_round is not None:
            self._on_round(done)

    # At rest --------------------------------------------------------------------------------------------

    def _at_rest(self, evaluated: EvaluationOutputs) -> EvaluationVerdict:
        """All parties wait: look, tell, save, and say whether this is the best so far and whether to stop."""
        evaluation = self._evaluate(evaluated)
        self._history.append(evaluation)
        verdict = judge(self.job.settings, self._history, self._keeps_best)
        if verdict.best or not self._keeps_best:
            self._outputs[evaluated.rows] = evaluated
        if self.directory is not None:
            self.directory.append(evaluation.to_dict())
            if verdict.stop or evaluated.round == self.parties.batches.rounds or self._saving_is_due():
                self._save(resting=True)
        asked = self._tell_callbacks(evaluation, verdict.stop)
        return replace(verdict, stop=verdict.stop or asked)

    def _tell_callbacks(self, evaluation: Evaluation, stop: bool) -> bool:
        """Each of them hears of it, whatever another says; whether one asks to stop."""
        asked = [callback(evaluation.to_dict()) is True for callback in self._callbacks]
        if any(asked) and not stop:
            self._stopped_by = "callback"
            self._save(resting=True)
        return any(asked)

    def _at_test(self, tested: EvaluationOutputs) -> None:
        """The test rows, once, with the weights that are delivered."""
        best = self.parties.label.best.round
        self._outputs[HeldOut.TEST] = replace(tested, round=tested.round if best is None else best)
        self._history[-1] = self._evaluator.add_test(self._history[-1], tested)
        if self.directory is not None:
            self.directory.replace_last(self._history[-1].to_dict())

    def _evaluate(self, evaluated: EvaluationOutputs) -> Evaluation:
        clock = self.parties.simulation.clock
        label = self.job.label_party
        # Where there are no test rows, the training rows are what a run is judged by.
        asked = self.job.metrics if self.job.diagnostics or evaluated.outputs is None else ()
        outputs, kind = self.parties.training_outputs(), Outputs.of(label.loss)
        train = compute_scores(outputs, label.labels, label.training_loss, asked, kind)
        link_seconds = None if clock is None else clock.latest()
        return self._evaluator.evaluate(evaluated, train, self._seconds(), link_seconds, self._diagnostics())

    def _diagnostics(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for program in self.parties.programs:
            mine = {**program.plan.diagnostics(), **program.end.diagnostics()}
            if mine:
                found[program.context.me] = mine
        if self.job.diagnostics:
            found["squared_gradient_norm"] = gradient = _finite(self.parties.gradient_square())
            self._gradient_at_0 = gradient if self._gradient_at_0 is None else self._gradient_at_0
            relative = gradient / self._gradient_at_0 if gradient is not None and self._gradient_at_0 else 0.0
            found["relative_gradient_norm"] = None if gradient is None else relative
            found["distortion"] = {name: _finite(value) for name, value in self.parties.distortion().items()}
        return found

    def _seconds(self) -> float:
        return self._seconds_before + perf_counter() - self._began

    # Saving ---------------------------------------------------------------------------------------------

    def _saving_is_due(self) -> bool:
        """Surrogates of all rows may take longer to save than a round: a tenth of the time is enough for it."""
        return perf_counter() - self._saved >= 9 * self._saving_seconds

    def _save(self, resting: bool) -> None:
        if self.directory is None:
            return
        began = perf_counter()
        simulation = self.parties.simulation
        in_flight = simulation.in_flight()
        data = {
            "job": self._digests(),
            "round": self.parties.label.start,
            "resting": resting,
            "seconds": self._seconds(),
            "gradient_at_0": self._gradient_at_0,
            "events": len(self._history),
            "tested": self.parties.label.tested,
            "threads": torch.get_num_threads(),
            "ledger": simulation.ledger.state(),
            "clock": None if simulation.clock is None else simulation.clock.state(),
            "plans": {program.context.me: program.plan.state() for program in self.parties.programs},
            "in_flight": [[m.sender, m.receiver, int(m.kind), m.round, arrival] for m, arrival in in_flight],
        }
        tensors = {program.context.me: program.end.tensors() for program in self.parties.programs}
        for place, (message, _) in enumerate(in_flight):
            body = torch.frombuffer(bytearray(message.body), dtype=torch.uint8)
            tensors[message.receiver][f"in_flight.{place}"] = body
        self.directory.save(data, tensors)
        self._saved = perf_counter()
        self._saving_seconds = self._saved - began

    def resume(self, directory: RunDirectory, data: dict[str, Any], tensors: dict[PartyName, Any]) -> None:
        self._history = [Evaluation.model_validate(event) for event in directory.truncate(data["events"])]
        self._seconds_before = data["seconds"]
        self._gradient_at_0 = data["gradient_at_0"]
        simulation = self.parties.simulation
        simulation.ledger.load(data["ledger"])
        if simulation.clock is not None and data["clock"] is not None:
            simulation.clock.load(data["clock"])
        for place, (sender, receiver, kind, round, arrival) in enumerate(data.get("in_flight", ())):
            body = tensors[receiver][f"in_flight.{place}"].numpy().tobytes()
            simulation.put_back(Message(sender, receiver, Kind(kind), round, body), arrival)
        for program in self.parties.programs:
            program.end.load(tensors[program.context.me])
            program.plan.load(data["plans"][program.context.me])
            program.start = data["round"]
            program.fresh = False
            program.tested = data.get("tested", False)
        verdict = judge(self.job.settings, self._history, self._keeps_best)
        if data["resting"]:
            for program in self.parties.programs:
                program.at_barrier = True
            self.parties.label.verdict = verdict
        elif verdict.stop and self._history[-1].round == data["round"]:
            for program in self.parties.programs:
                program.start = self.parties.batches.rounds  # it had ended there
