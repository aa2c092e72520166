"""Workers that follow what a study can use: seconds until one trains that was asked for, and seconds of idle ones.

Synchronous halving on local workers, whose rungs end with fewer jobs than workers: on a fixed number of them, and on
ranges, given back after 3 and 20 idle looks (Dask's ``distributed.adaptive.wait-count``). The perfect
schedule is the same study on virtual workers that come and go at once, with the durations that were measured.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import dask

import hpo_core as hpo
from hpo_core import Study
from hpo_core.execution.virtual import VirtualClock
from hpo_core.home import Home
from hpo_core.model.events import CapacityChanged, Entry, JobCompleted, JobGranted
from hpo_core.simulation.repeats import Simulation
from hpo_core.spec import StudySpec

CASES = [
    {"workers": 6, "least": 6, "wait_count": 3},
    {"workers": 6, "least": 0, "wait_count": 3},
    {"workers": 6, "least": 0, "wait_count": 20},
]
SECONDS = 6.0
"""Of a unit of training."""


def sleeps(trial: hpo.Trial) -> None:
    """Train by sleeping: processors are free for what is measured."""
    for _ in trial.steps():
        time.sleep(SECONDS * (0.5 + trial.params["x"]))
        trial.report(loss=trial.params["x"])


def measure(*, workers: int, least: int, wait_count: int) -> dict[str, Any]:
    """One study to its end."""
    with tempfile.TemporaryDirectory() as folder, dask.config.set({"distributed.adaptive.wait-count": wait_count}):
        result = hpo.tune(
            sleeps, {"x": hpo.Float(0, 1)}, metric="loss", seed=1, name="demand",
            method=hpo.Sha(configs=18, min_resource=1, max_resource=9, reduction_factor=3),
            workers=hpo.WorkerRange(least, workers) if least < workers else workers,
            home=folder, prefect="off", progress=False, tracking=hpo.Tracking(mlflow="off"),
        )  # fmt: skip
        journal = Home(Path(folder)).read_journal()
        entries = list(journal.entries(result.name))
        journal.close()
    return figures(entries, workers)


def figures(entries: list[Entry], workers: int) -> dict[str, Any]:
    """What a journal says of its workers."""
    done = [event for entry in entries for event in entry.events if isinstance(event, JobCompleted)]
    started = {(one.trial, one.attempt): one.started for one in done}
    took = {(one.trial, one.resource): one.ended - one.started for one in done}
    busy, end = sum(took.values()), entries[-1].time
    offered, there, since = 0.0, 0, entries[0].time
    waits, short_since = [], None
    study = Study.from_entries(entries[:1])
    for entry in entries[1:]:
        granted = [(event.trial, event.attempt) for event in entry.events if isinstance(event, JobGranted)]
        before = study.state.capacity
        study.replay(entry)
        if any(isinstance(event, CapacityChanged) for event in entry.events):
            offered += there * (entry.time - since)
            there, since = study.state.capacity, entry.time
            if short_since is not None and there > before:
                waits += [started[key] - short_since for key in granted if key in started]
                short_since = None
        short = study.demand(workers) > study.state.capacity
        if not short or not there:  # the start is no part of it
            short_since = None
        elif short_since is None:
            short_since = entry.time
    offered += there * (end - since)
    perfect = perfect_schedule(study.spec, workers, took)
    return {
        "wall_s": round(end - entries[0].time, 1),
        "perfect_wall_s": round(perfect, 1),
        "busy_worker_s": round(busy, 1),
        "idle_worker_s": round(offered - busy, 1),
        "idle_share": round(1 - busy / offered, 3),
        "asked_for": len(waits),
        "from_demand_to_training_s": round(statistics.median(waits), 1) if waits else None,
    }


def perfect_schedule(spec: StudySpec, workers: int, took: dict[tuple[int, int], float]) -> float:
    """Seconds of the study where workers come and go at once, with the same jobs."""
    clock = VirtualClock()
    study = Study.create(spec, clock=clock)
    Simulation(
        study, clock, workers=workers, least=0, train=lambda job: {"loss": job.params["x"]},
        seconds=lambda job: took[job.trial, job.target],
    ).run()  # fmt: skip
    return clock.now
