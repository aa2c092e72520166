"""Play a study again and again on virtual workers, and keep what people ask about."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hpo_core.execution.faults import Faults
from hpo_core.execution.virtual import VirtualClock
from hpo_core.execution.virtual_devices import mean_claims
from hpo_core.execution.virtual_workers import Worker
from hpo_core.journal.memory import UnkeptJournal
from hpo_core.model.trial import Job, Metrics, Outcome, Params, Point
from hpo_core.samplers.sampler import Sampler
from hpo_core.simulation.gang_speeds import gang_speedup
from hpo_core.simulation.partitioned_data import HoppingSimulation, PartitionedData
from hpo_core.simulation.run_figures import LOAD_BINS, RunFigures
from hpo_core.simulation.shared_cluster import SharedCluster, SharedSimulation
from hpo_core.simulation.simulated_needs import SimulatedNeeds
from hpo_core.simulation.simulation import Simulation
from hpo_core.spec import StudySpec, limits
from hpo_core.study import Study

MOST_ATTEMPTS, PER_JOB = 200_000, 20
"""A study is cut off after so many attempts, and so many more for each job that its search expects: one without
configs may never meet its stop rule, and a job that is dropped too often never ends."""
ENDLESS = 1_000_000_000


class Workload(Protocol):
    """What training gives and takes."""

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
    needs: SimulatedNeeds | None = None
    """Of its jobs, where they share devices."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One answer to "what if"."""

    name: str
    spec: StudySpec
    workers: tuple[Worker, ...]
    faults: Faults
    changes: tuple[str, ...] = ()
    """``KEY=VALUE`` that made ``spec`` what it is."""
    cluster: SharedCluster | None = None
    """Devices that jobs share; None: each worker runs one job at a time."""
    placed: PartitionedData | None = None
    """How partitions of the data lie on the workers, where models hop."""

    @property
    def max_resource(self) -> int | None:
        """R; None where there is none."""
        return self.spec.search.outline().max_resource


@dataclass(frozen=True, slots=True)
class Run:
    """What one repeat came to. Times in virtual seconds from the start; losses, not metrics."""

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
    load: tuple[float, ...]
    """Busy workers on average in each of :data:`LOAD_BINS` equal parts of ``seconds``; of devices that jobs share, the
    compute claimed, in devices."""
    occupancy: float | None = None
    """Compute claimed over the compute that was there, where jobs share devices."""
    claims: tuple[tuple[float, ...], ...] = ()
    """By device, of the first repeat: the compute claimed in each of these parts."""
    replicated: float | None = None
    """Seconds with all data on each worker, where models hop."""

    @property
    def loss(self) -> float | None:
        """Of the incumbent at the end."""
        return self.steps[-1][1] if self.steps else None

    @property
    def utilization(self) -> float:
        return self.busy / self.offered if self.offered else 0.0

    def reached(self, loss: float) -> float | None:
        """When the incumbent was that good, or None."""
        return next((time for time, found in self.steps if found <= loss), None)


def simulated_spec(scenario: Scenario, repeat: int) -> StudySpec:
    """The scenario's spec with the repeat's own seed; made faults neither halt nor exhaust a study.

    Simulated curves know nothing of earlier studies, so a warm start says nothing here and is left out.
    """
    spec = scenario.spec
    changes: dict[str, Any] = {"seed": spec.seed + repeat, "warm_start": None}
    if scenario.faults.drops or any(worker.leaves < float("inf") for worker in scenario.workers):
        retries = spec.training.retries | {Outcome.LOST: ENDLESS}
        training: dict[str, Any] = {"retries": retries, "max_lost": None}
        if scenario.faults.drop == "abandon":
            training |= {"retries": retries | {Outcome.ERROR: 0}, "fail_fast": None}
        changes["training"] = spec.training.model_copy(update=training)
    return spec.model_copy(update=changes)


def expected_jobs(study: Study) -> int:
    """Jobs that the search plans, mispromotions aside."""
    return sum(rung.expected for rung in study.method.rungs())


def play(scenario: Scenario, world: Callable[[StudySpec, int], World], repeat: int) -> Run:
    """One repeat to its end.

    Args:
        world: given the repeat's spec and number.
    """
    spec = simulated_spec(scenario, repeat)
    place = world(spec, repeat)
    faults = scenario.faults
    if faults.drops or faults.stragglers:
        faults = Faults(
            stragglers=faults.stragglers,
            drops=faults.drops,
            drop=faults.drop,
            seed=spec.seed,
            time_unit=place.workload.time_unit,
        )
    clock = VirtualClock()
    figures = RunFigures(scenario.max_resource, highest_rung=spec.best_of == "highest_rung")
    study = Study.create(spec, UnkeptJournal(figures.take), sampler=place.sampler, clock=clock)
    executor = _simulation(scenario, study, clock, place, faults)
    most = MOST_ATTEMPTS + PER_JOB * expected_jobs(study)
    executor.run(max_reports=min(most, limits.SIMULATED_JOBS))
    run = _summary(scenario, study, executor, figures, guessed=place.workload.guessed)
    if scenario.placed is not None:
        alone = spec.training.model_copy(update={"gang": 1})
        changes = {"data": None, "seed": scenario.spec.seed, "training": alone}
        whole = replace(scenario, placed=None, spec=spec.model_copy(update=changes))
        return replace(run, replicated=play(whole, world, repeat).seconds)
    return _with_claims(run, executor, keep=repeat == 0) if isinstance(executor, SharedSimulation) else run


def _simulation(scenario: Scenario, study: Study, clock: VirtualClock, place: World, faults: Faults) -> Simulation:
    workload = place.workload
    how: dict[str, Any] = {
        "train": workload.train,
        "seconds": workload.seconds,
        "curve": workload.curve if study.method.reads_curves else None,
        "faults": faults,
    }
    speedup = gang_speedup(study.spec)
    if scenario.placed is not None:
        how["speedup"] = lambda job: speedup(job.unit.ranks)
        return HoppingSimulation(study, clock, placed=scenario.placed, workers=scenario.workers, **how)
    how["checkpoints"] = place.checkpoints
    if scenario.cluster is None or place.needs is None:
        how["speedup"] = lambda job: speedup(job.demand.slots)
        return Simulation(study, clock, workers=scenario.workers, **how)
    needs, unit = place.needs, workload.time_unit
    return SharedSimulation(study, clock, cluster=scenario.cluster, needs=needs, time_unit=unit, **how)


def _with_claims(run: Run, executor: SharedSimulation, *, keep: bool) -> Run:
    """What its devices were used for; by device only of the run whose picture is drawn."""
    devices = executor.devices
    claims = [mean_claims(history, run.seconds, LOAD_BINS) for history in devices.history]
    occupancy = devices.occupancy  # it counts until now
    return replace(
        run,
        busy=devices.used_seconds,
        load=tuple(map(math.fsum, zip(*claims, strict=True))),
        occupancy=occupancy,
        claims=tuple(map(tuple, claims)) if keep else (),
    )


def _summary(scenario: Scenario, study: Study, executor: Simulation, figures: RunFigures, *, guessed: int) -> Run:
    state = study.state
    end = executor.clock.now
    best = state.incumbent
    return Run(
        seed=study.spec.seed,
        ended=_ending(study, executor),
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
        load=figures.load(end),
    )


def _ending(study: Study, executor: Simulation) -> str:
    state = study.state
    if state.halted is not None:
        return state.halted.reason
    if study.finished:
        return "finished"
    if state.running:
        return f"cut off after {state.completed_jobs + state.failed_attempts:,} attempts"
    return "no worker was left"
