"""Play a study again and again on virtual workers, and keep what people ask about."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from hpo_core.execution.executor import Executor
from hpo_core.execution.loop import Loop, Observer
from hpo_core.execution.virtual import Faults, VirtualClock, VirtualExecutor, Worker
from hpo_core.journal.memory import UnkeptJournal
from hpo_core.model import limits
from hpo_core.model.events import Entry, JobCompleted
from hpo_core.model.trial import Job, Metrics, Outcome, Params, Point
from hpo_core.placement.placer import Placer
from hpo_core.samplers.sampler import Sampler
from hpo_core.spec import StudySpec
from hpo_core.state.best_results import BestResults
from hpo_core.study import Study
from hpo_core.views.formatting import Spread, quantile


class RunFigures:
    """Follows the entries of a run and keeps its figures alone.

    Args:
        max_resource: R; None where there is none.
        highest_rung: whether the best result is that of the highest rung (``best_of``).
    """

    def __init__(self, max_resource: int | None, *, highest_rung: bool) -> None:
        self._top = max_resource
        self._bests = BestResults(highest_rung=highest_rung)
        self._rungs = Counter[int]()
        self.steps: list[tuple[float, float]] = []
        """Changes of the incumbent: (time, loss)."""
        self.first_full: float | None = None
        """When the first trial was trained to R."""
        self.full = 0
        """Trials trained to R."""

    def take(self, entry: Entry) -> None:
        for event in entry.events:
            if type(event) is JobCompleted:
                self._completed(event, entry.time)

    @property
    def rungs(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(self._rungs.items()))

    def _completed(self, event: JobCompleted, time: float) -> None:
        self._rungs[event.resource] += 1
        if event.resource == self._top:
            self.full += 1
            if self.first_full is None:
                self.first_full = time
        if event.loss is not None and not event.violation:
            self._bests.take(event)
        best = self._bests.incumbent
        if best is not None and (not self.steps or best.loss != self.steps[-1][1]):
            self.steps.append((time, best.loss))


LINEAR = (
    "Gangs train as many times as fast as they have ranks, for nothing says how fast they are: give scaling.speedups.",
)


def gang_speedup(spec: StudySpec) -> Callable[[int], float]:
    if spec.scaling.speedups:
        gains = {1: 1.0, **spec.scaling.speedups}
        return lambda ranks: max(gain for size, gain in gains.items() if size <= ranks)  # a rerun may have other sizes
    return float


MOST_ATTEMPTS, PER_JOB = 200_000, 20
"""A study is cut off after so many attempts, and so many more for each job that its search expects: one without
configs may never meet its stop rule, and a job that is dropped too often never ends."""
ENDLESS = 1_000_000_000


class Workload(Protocol):
    """Metrics and durations of training."""

    @property
    def time_unit(self) -> float:
        """Seconds that one unit of resource takes, roughly: the time unit of drops."""
        ...

    @property
    def guessed(self) -> int:
        """Results so far that lie beyond what is known."""
        ...

    def train(self, job: Job) -> Metrics | Outcome: ...

    def curve(self, job: Job) -> Sequence[Point]: ...

    def seconds(self, job: Job) -> float: ...


@dataclass(frozen=True, slots=True)
class World:
    """Where one repeat is played."""

    workload: Workload
    sampler: Sampler | None = None
    """None: the one the spec names."""
    checkpoints: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """One answer to "what if"."""

    name: str
    spec: StudySpec
    workers: tuple[Worker, ...]
    faults: Faults
    changes: tuple[str, ...] = ()
    """``KEY=VALUE`` that made ``spec`` what it is."""
    least: int | None = None
    """Workers that stay; the others are there while the study can use them. None: all stay."""

    @property
    def max_resource(self) -> int | None:
        return self.spec.search.outline().max_resource


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """Outcome of one repeat. Times in virtual seconds from the start; losses, not metrics."""

    seed: int
    ended: str
    """``finished``, or why it ended before."""
    seconds: float
    """Until the last job ended."""
    steps: tuple[tuple[float, float], ...]
    """Changes of the incumbent: (time, loss)."""
    first_full: float | None
    """When the first trial was trained to R."""
    full: int | None
    """Trials trained to R; None where there is no R."""
    offered: float
    """Worker time, idle or not."""
    busy: float
    lost: float
    """Part of ``busy`` that gave no result."""
    resource: int
    """Units of training behind all results."""
    trials: int
    jobs: int
    failed: int
    """Attempts without a result."""
    best: Params | None
    best_resource: int
    rungs: tuple[tuple[int, int], ...]
    """(resource, results there), ascending."""
    guessed: int
    """Results that lie beyond what the source of the curves knows."""

    @property
    def loss(self) -> float | None:
        return self.steps[-1][1] if self.steps else None

    @property
    def utilization(self) -> float:
        return self.busy / self.offered if self.offered else 0.0

    def reached(self, loss: float) -> float | None:
        return next((time for time, found in self.steps if found <= loss), None)

    def figures(self, target: float | None) -> dict[str, float | None]:
        """Every figure by name; ``target`` is a loss. Times and worker time in seconds."""
        return {
            "seconds": self.seconds,
            "seconds_to_target": None if target is None else self.reached(target),
            "seconds_to_first_at_max": self.first_full,
            "trials_at_max": self.full,
            "trials": self.trials,
            "jobs": self.jobs,
            "failed_attempts": self.failed,
            "resource": self.resource,
            "utilization": self.utilization,
            "worker_seconds": self.offered,
            "lost_worker_seconds": self.lost,
            "best_loss": self.loss,
        }


def simulated_spec(scenario: Scenario, repeat: int) -> StudySpec:
    """The scenario's spec with the repeat's own seed; made faults neither halt nor exhaust a study.

    Simulated curves know nothing of earlier studies, so a warm start says nothing here and is left out. Each worker has
    all data, and runs one job at a time.
    """
    spec = scenario.spec
    changes: dict[str, Any] = {"seed": spec.seed + repeat, "warm_start": None, "packing": None}
    if spec.hops:
        spec = spec.model_copy(update={"data": None, "training": spec.training.model_copy(update={"gang": 1})})
    if scenario.faults.drops or any(worker.leaves < float("inf") for worker in scenario.workers):
        retries = spec.training.retries | {Outcome.LOST: ENDLESS}
        training: dict[str, Any] = {"retries": retries}
        if scenario.faults.drop == "abandon":
            training |= {"retries": retries | {Outcome.ERROR: 0}, "fail_fast": None}
        changes["training"] = spec.training.model_copy(update=training)
    return spec.model_copy(update=changes)


def expected_jobs(study: Study) -> int:
    """Jobs that the search plans, mispromotions aside."""
    return sum(rung.expected for rung in study.method.rungs())


def play(scenario: Scenario, world: Callable[[StudySpec, int], World], repeat: int) -> PlayedRun:
    """One repeat to its end.

    Args:
        world: given the repeat's spec and number.
    """
    spec = simulated_spec(scenario, repeat)
    place = world(spec, repeat)
    faults = scenario.faults
    if faults.drops or faults.stragglers:
        faults = msgspec.structs.replace(faults, seed=spec.seed, time_unit=place.workload.time_unit)
    clock = VirtualClock()
    figures = RunFigures(scenario.max_resource, highest_rung=spec.best_of == "highest_rung")
    study = Study.create(spec, UnkeptJournal(figures.take), sampler=place.sampler, clock=clock)
    simulation = _simulation(scenario, study, clock, place, faults)
    most = MOST_ATTEMPTS + PER_JOB * expected_jobs(study)
    simulation.run(max_reports=min(most, limits.SIMULATED_JOBS))
    return _summary(scenario, simulation, figures, guessed=place.workload.guessed)


def _simulation(scenario: Scenario, study: Study, clock: VirtualClock, place: World, faults: Faults) -> Simulation:
    workload, speedup = place.workload, gang_speedup(study.spec)
    return Simulation(
        study,
        clock,
        workers=scenario.workers,
        least=scenario.least,
        train=workload.train,
        seconds=workload.seconds,
        curve=workload.curve if study.method.reads_curves else None,
        faults=faults,
        checkpoints=place.checkpoints,
        speedup=lambda job: speedup(job.demand.slots),
    )


def _summary(scenario: Scenario, simulation: Simulation, figures: RunFigures, *, guessed: int) -> PlayedRun:
    study, executor, end = simulation.study, simulation.executor, simulation.clock.now
    state = study.state
    best = state.incumbent
    return PlayedRun(
        seed=study.spec.seed,
        ended=_ending(study),
        seconds=end,
        steps=tuple(figures.steps),
        first_full=figures.first_full,
        full=None if scenario.max_resource is None else figures.full,
        offered=executor.offered_seconds,
        busy=executor.busy_seconds,
        lost=executor.lost_seconds,
        resource=state.resource_used,
        trials=len(state.trials),
        jobs=state.completed_jobs,
        failed=state.failed_attempts,
        best=None if best is None else state.trials[best.trial].params,
        best_resource=0 if best is None else best.resource,
        rungs=figures.rungs,
        guessed=guessed,
    )


def _ending(study: Study) -> str:
    state = study.state
    if state.halted is not None:
        return state.halted.reason
    if study.finished:
        return "finished"
    if state.running:
        return f"cut off after {state.completed_jobs + state.failed_attempts:,} attempts"
    return "no worker was left"


@dataclass(frozen=True, slots=True)
class ScenarioAnswer:
    """Outcome of the repeats of one scenario."""

    scenario: Scenario
    runs: tuple[PlayedRun, ...]

    def figures(self, target: float | None) -> dict[str, Spread | None]:
        """Spread of every figure of its runs by name; ``target`` is a loss."""
        each = [run.figures(target) for run in self.runs]
        return {name: Spread.of(own[name] for own in each) for name in each[0]}

    def rungs(self) -> list[tuple[int, float]]:
        levels = sorted({level for run in self.runs for level, _ in run.rungs})
        counts = [Counter(dict(run.rungs)) for run in self.runs]
        return [(level, quantile(sorted(count[level] for count in counts), 0.5)) for level in levels]

    def endings(self) -> Counter[str]:
        """Why repeats ended, where they did not finish, and how many of them."""
        return Counter(run.ended for run in self.runs if run.ended != "finished")


def common_target(answers: Sequence[ScenarioAnswer]) -> float | None:
    """The best loss that every repeat of every scenario came to: a fair goal where the user names none."""
    finals = [run.loss for answer in answers for run in answer.runs]
    known = [loss for loss in finals if loss is not None]
    return max(known) if len(known) == len(finals) and known else None


class Simulation:
    """Drives a study in virtual time.

    Args:
        study: its clock must be ``clock``.
        clock: moved forward by :meth:`run`.
        workers: how many of speed 1, or each one.
        train: what training a job gives: metrics at its target, or an outcome other than completed.
        seconds: virtual duration of a job on a worker of speed 1.
        speedup: how many times as fast a gang trains as one worker; default: as many times as it has ranks.
        least: workers that stay; the others are there while the study can use them. None: all stay.
        more: as of the virtual executor: ``curve`` (for methods that read curves, ``study.method.reads_curves``),
            ``checkpoints`` (whether results carry a made up one, so that later jobs resume), ``faults``.
    """

    def __init__(
        self,
        study: Study,
        clock: VirtualClock,
        *,
        workers: int | Sequence[Worker],
        train: Callable[[Job], Metrics | Outcome],
        seconds: Callable[[Job], float],
        speedup: Callable[[Job], float] | None = None,
        least: int | None = None,
        **more: Any,
    ) -> None:
        executor = VirtualExecutor(
            clock, workers=workers, train=train, seconds=seconds, speedup=speedup, **_metrics(study), **more
        )

        if least is not None:
            executor.follow(study.demand, least)

        def expected(job: Job) -> float:
            return seconds(job) / (job.demand.slots if speedup is None else speedup(job))

        self._drive(study, executor, executor, Placer(expected))

    def _drive(
        self,
        study: Study,
        virtual: VirtualExecutor,
        executor: Executor,
        placer: Placer | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.study = study
        self.clock = virtual.clock
        self.executor = virtual
        """Counts the seconds of its workers: offered, busy, lost."""
        self._loop = Loop(study, executor, placer=placer, observers=observers)

    def run(self, until: float = math.inf, max_reports: int | None = None) -> None:
        """Go on until the study has nothing to run, the clock says ``until``, or so many reports came.

        Ends early, with the study open, where the last worker left.
        """
        self._loop.run(until=until, max_reports=max_reports)


def _metrics(study: Study) -> dict[str, Any]:
    return {"objectives": [metric.name for metric in study.spec.objectives]}
