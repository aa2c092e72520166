"""Whether a study that was broken again and again is whole: nothing lost, nothing doubled, nothing left."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from faults import Fault
from objective import Chain

from hpo_core.home import Home
from hpo_core.model.events import AttemptFailed, ControllerChanged, Entry, JobCompleted, TrialCreated
from hpo_core.model.trial import Outcome
from hpo_core.replay.audit import audit
from hpo_core.study import Study
from hpo_core.tracking.tracker_links import read_place
from hpo_core.views.lineage import Lineage, read_lineage


def problems_of(home: Home, name: str) -> list[str]:
    """What is wrong with a finished study; empty where nothing is."""
    journal = home.open_journal()
    entries = list(journal.entries(name))
    journal.close()
    found = []
    study = Study.from_entries(entries)
    study.check()
    if study.status != "finished":
        found.append(f"status {study.status}")
    report = audit(entries)
    found += [f"audit: {finding}" for finding in report.findings]
    done = [event for entry in entries for event in entry.events if isinstance(event, JobCompleted)]
    twice = [key for key, count in Counter((e.trial, e.resource) for e in done).items() if count > 1]
    found += [f"trial {trial} reached {resource} twice" for trial, resource in twice]
    found += _wrong_losses(entries, done)
    # no training function of the soak raises anything: where one did, its trial was blamed for what was done to it
    failed = [event for entry in entries for event in entry.events if isinstance(event, AttemptFailed)]
    found += [f"trial {e.trial} is blamed: {e.message}" for e in failed if e.outcome is Outcome.ERROR]
    folder = home.study_folder(name)
    on_disk = {path.relative_to(folder).as_posix() for path in (folder / "checkpoints").rglob("*.safetensors*")}
    live = set(study.checkpoints.uris)
    found += [f"checkpoint {uri} is missing" for uri in live - on_disk]
    found += [f"checkpoint {uri} is needed by nothing" for uri in on_disk - live]
    abandoned = [trial for trial, record in enumerate(study.state.trials) if record.abandoned is not None]
    found += [f"trial {trial} was abandoned" for trial in abandoned]
    hops = folder / "hops"
    found += [f"{path.relative_to(folder)} is left" for path in hops.rglob("*") if path.is_file()]
    return found


def _wrong_losses(entries: Sequence[Entry], done: Sequence[JobCompleted]) -> list[str]:
    """Results that an uninterrupted training would not have given, to the bit."""
    lineage = read_lineage(iter(entries))
    params = {e.trial: e.params for entry in entries for e in entry.events if isinstance(e, TrialCreated)}
    found = []
    by_result = {(event.trial, event.resource): event for event in done}
    for event in done:
        schedule = lineage.schedule(event.trial, event.resource)
        chain = Chain(0.0)
        orders = _orders(by_result, lineage, event)
        for step in range(event.resource):
            chain.x = schedule.at(step)["x"]
            for partition in orders[step] if orders else [0]:
                chain.advance(step, partition)
        wrong = [step for step, order in orders.items() if sorted(order) != [1, 2, 3, 4]]
        found += [f"trial {event.trial}, epoch {step}: partitions {orders[step]}" for step in wrong]
        chain.x = params[event.trial]["x"]
        if event.metrics["loss"] != chain.loss(event.resource):
            found.append(f"trial {event.trial} at {event.resource}: loss {event.metrics['loss']!r}, not what it takes")
    return found


def _orders(by_result: Mapping[tuple[int, int], JobCompleted], lineage: Lineage, event: JobCompleted) -> dict[int, Any]:
    """By epoch, from 0: numbers of the partitions that a model saw, in that order; empty where models do not hop."""
    orders: dict[int, list[int]] = {}
    while event.visits:
        own: dict[int, list[int]] = {}
        for visit in event.visits:
            own.setdefault(visit.epoch, []).append(visit.partition + 1)
        orders |= own
        if not (start := min(own)):
            break
        trial = event.trial if (event.trial, start) in by_result else lineage.births[event.trial].parent
        event = by_result[trial, start]
    return orders


def problems_in_mlflow(home: Home, name: str) -> list[str]:
    """Steps that MLflow has twice, or other values than the journal; runs that are missing."""
    from mlflow.tracking import MlflowClient

    journal = home.open_journal()
    study = Study.open(name, journal, reading=True)
    journal.close()
    place = read_place(home.study_folder(name))
    if place is None:
        return ["MLflow: the study has no run"]
    client = MlflowClient(home.tracking_uri(study.spec))
    run = client.get_run(place.run_id)
    children = client.search_runs(
        [run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{place.run_id}'", max_results=5000
    )
    found = []
    if len(children) != len(study.state.trials):
        found.append(f"MLflow: {len(children)} runs for {len(study.state.trials)} trials")
    for child in children:
        points = client.get_metric_history(child.info.run_id, "loss")
        trial = child.data.tags.get("hpo.trial")
        twice = [step for step, count in Counter(point.step for point in points).items() if count > 1]
        found += [f"MLflow: trial {trial} has step {step} twice" for step in twice]
        found += [f"MLflow: trial {trial}, step {p.step}: {p.value}" for p in points if not math.isfinite(p.value)]
    return found


def figures_of(home: Home, name: str, faults: Sequence[Fault], workers: int, unit_seconds: float) -> dict[str, Any]:
    """Wall-clock of a study, and what its faults cost.

    ``ideal_seconds`` is its training alone, shared by all slots without a gap. After a fault, the time to the
    next result beyond the usual gap between two results is what that fault held up at least.
    """
    journal = home.open_journal()
    entries = list(journal.entries(name))
    journal.close()
    times = [entry.time for entry in entries for event in entry.events if isinstance(event, JobCompleted)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    usual = statistics.median(gaps) if gaps else 0.0
    done = [event for entry in entries for event in entry.events if isinstance(event, JobCompleted)]
    units = 0
    reached: dict[int, int] = {}
    lineage = read_lineage(iter(entries))
    for event in done:
        parent = lineage.births[event.trial].parent
        start = reached.get(event.trial, reached.get(parent, 0) if parent is not None else 0)
        units += event.resource - start
        reached[event.trial] = event.resource
    wall = entries[-1].time - entries[0].time
    ideal = units * unit_seconds / workers
    held = []
    for fault in faults:
        after = next((moment for moment in times if moment > fault.time), entries[-1].time)
        held.append(max(0.0, after - fault.time - usual))
    lost = [event for entry in entries for event in entry.events if isinstance(event, AttemptFailed)]
    controllers = sum(isinstance(event, ControllerChanged) for entry in entries for event in entry.events)
    return {
        "study": name,
        "entries": len(entries),
        "results": len(done),
        "controllers": controllers,
        "attempts_lost": len(lost),
        "faults": len(faults),
        "wall_seconds": round(wall, 1),
        "ideal_seconds": round(ideal, 1),
        "lost_seconds_per_fault": round((wall - ideal) / len(faults), 2) if faults else None,
        "held_up": [
            [fault.kind(), round(fault.seconds, 1), round(seconds, 1)]
            for fault, seconds in zip(faults, held, strict=True)
        ],
    }


def log_tail(path: Path, size: int = 1500) -> str:
    return path.read_text(errors="replace")[-size:] if path.exists() else ""
