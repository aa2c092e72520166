"""Write the golden journal of the present format: ``python -m tests.golden.make``.

Run it once per format, commit what it writes, and never again: the point of these files is that they stay.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec

from hpo_core import Job, MemoryJournal, Outcome, Study, StudySpec
from hpo_core.execution.virtual import VirtualAttempt, Worker
from hpo_core.journal.codec import encode_entry
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import FORMAT, JobPlaced, StateCopied
from hpo_core.model.trial import Checkpoint, JobKey, Report
from tests.conftest import World, completed, failed, fresh, make_spec
from tests.hopping.hopping_studies import VirtualHopping
from tests.methods import spec_of

FOLDER = Path(__file__).parent


def every_kind_of_event() -> Study:
    """A study of promotion ASHA with every misfortune."""
    world = World(11, failures=0.1, nans=0.1)
    study = fresh(make_spec(study="golden"), MemoryJournal(), world)
    running = world.play(study, steps=12)
    job = next(job for job in running)
    study.tell_report(failed(job, Outcome.STORAGE, "disk full"))
    study.recover("second:2")
    running = study.set_capacity(3)
    late = running[0]
    (again,) = study.tell_report(failed(late, Outcome.LOST))
    study.tell_report(completed(late, 0.1))  # late: ignored
    running = [*running[1:], again]
    while not any(job.checkpoint for job in running):
        job = running.pop(0)
        checkpoint = Checkpoint(f"t{job.trial}r{job.rung}", "ab", job.target, 7)
        running += study.tell_report(completed(job, world.loss(job), checkpoint=checkpoint))
    job = next(job for job in running if job.checkpoint)
    study.tell_report(failed(job, Outcome.CHECKPOINT_BAD, "truncated"))
    study.stop("a person")
    study.extend(3)
    world.play(study, study.state.wanted())
    return study


def limited() -> Study:
    """A study that a stop rule and a checkpoint budget end and shape."""
    world = World(13)
    limits = {"stop": {"seconds": 20.0}, "checkpoints": {"max_count": 6}}
    study = fresh(make_spec(study="golden", **limits), MemoryJournal(), world)
    running = study.set_capacity(3)
    while running:
        job = running.pop(0)
        checkpoint = Checkpoint(f"t{job.trial}r{job.rung}", "ab", job.target, 7)
        world.now += 0.5
        running += study.tell_report(completed(job, world.loss(job), checkpoint=checkpoint))
        if len(study.state.trials) > 12:
            world.now += 100
            study.tick()
    study.recover("second:2")
    world.play(study)
    return study


def abandoned() -> Study:
    """A study in which one trial loses every worker, and a person gives up others: running, waiting, paused."""
    world = World(17, workers=3)
    study = fresh(make_spec(study="golden", training={"retries": {"error": 1}}), MemoryJournal(), world)
    running = study.set_capacity(3)
    told = 0
    while running:
        job = running.pop(0)
        told += 1
        if job.trial == 2:
            running += study.tell_report(failed(job, Outcome.LOST, "killed", worker="tcp://a"))
        elif told in (4, 9):
            running += study.tell_report(failed(job, Outcome.ERROR, "KeyError: 'x'"))
        else:
            running += study.tell_report(world.good(job))
        if told in (6, 15, 24):
            wanted = {6: "running", 15: "paused", 24: "running"}[told]
            trial = next(t for t in study.state.trials if t.status == wanted and t.number != 2)
            study.abandon(trial.number)
            running = [job for job in running if job.trial != trial.number] + study.set_capacity(3)
    return study


def enqueued() -> Study:
    """A study that begins with given configurations, has constants, and gets further configurations on its way."""
    world = World(19, failures=0.05)
    given = {
        "start_with": [{"x": 0.25}, {"c": "a", "d": 16, "x": 0.5}],
        "constants": {"data": "train.npz", "lags": [1, 7]},
    }
    study = fresh(make_spec(study="golden", **given), MemoryJournal(), world)
    world.play(study, steps=7)
    study.enqueue({"x": 0.125, "c": "b"})
    study.enqueue({"x": 0.375})
    study.recover("second:2")
    world.play(study)
    return study


def exhausted() -> Study:
    """A study whose sampler runs out of configurations while a rung fills; the best go on."""
    world = World(19, failures=0.05)
    grid = {"name": "GridSampler", "search_space": {"x": [0.25, 0.5, 0.75], "c": ["a", "b"], "d": [1, 5, 9]}}
    spec = make_spec(study="golden", sampler=grid, search={"method": "hyperband", "max_resource": 9, "rounds": 2})
    study = fresh(spec, MemoryJournal(), world)
    world.play(study)
    return study


def constrained() -> Study:
    """A study with two constraints, of which many results violate one, and some are not finite."""
    world = World(23, failures=0.05, nans=0.05)
    study = fresh(make_spec(study="golden", constraints=["size", "time"]), MemoryJournal(), world)
    running = study.set_capacity(3)
    while running:
        job = running.pop(0)
        report = world.report(job)
        x, target = float(job.params["x"]), job.target
        values = {"size": x - 0.5, "time": math.inf if x > 0.9 else 0.3 - x * target}
        running += study.tell_report(msgspec.structs.replace(report, metrics=report.metrics | values))
    return study


def asked() -> Study:
    """A study for which another process asked for configurations (``hpo enqueue``), among those of its own."""
    world = World(31, failures=0.05)
    study = fresh(make_spec(study="golden"), MemoryJournal(), world)
    world.play(study, steps=5)
    study.enqueue({"x": 0.125, "c": "b"})
    study.enqueue({"x": 0.375})
    study.enqueue({"x": 0.625})
    study.recover("second:2")
    world.play(study)
    return study


def used() -> Study:
    """A study whose attempts, failed ones included, say what they used: on GPUs, on a CPU, or nothing."""
    world = World(37, failures=0.1, nans=0.05)
    study = fresh(make_spec(study="golden"), MemoryJournal(), world)
    gpu = {"architecture": "A100", "device": "GPU-5d4e", "share": (300, 6 * 10**9, 2000)}
    running = study.set_capacity(3)
    while running:
        job = running.pop(0)
        memory = 10**8 + int(10**8 * float(job.params["x"]))
        usage = Usage(memory=memory, cores=0.875, startup_seconds=0.25, unit_seconds=0.5)
        if job.trial % 3 == 1:
            usage = msgspec.structs.replace(usage, device_memory=memory * 20, compute=0.28, **gpu)
        elif job.trial % 3 == 2:
            usage = msgspec.structs.replace(usage, device="node-1", architecture="CPU")
        report = world.report(job)
        if job.trial == 4 and job.attempt == 0:
            report = failed(job, Outcome.OUT_OF_MEMORY, "The attempt took 9,000 MB of memory")
        running += study.tell_report(
            report if report.outcome is Outcome.LOST else msgspec.structs.replace(report, usage=usage)
        )
    return study


def placed() -> Study:
    """A study whose jobs share two devices: some wait for one, one is measured and holds less, a controller dies."""
    world = World(41, failures=0.1)
    study = fresh(make_spec(study="golden", packing={}), MemoryJournal(), world)

    def place(jobs: list[Job], memory: int = 2 * 10**9) -> None:
        study.note_placements(
            [
                JobPlaced(
                    job.trial,
                    job.attempt,
                    device=f"cpu:node-{job.trial % 2}",
                    architecture="CPU",
                    share=(250, memory, 1000),
                    began=world.now,
                )
                for job in jobs
            ]
        )

    running = study.set_capacity(5)
    place(running[:3])
    place(running[:1], memory=7 * 10**8)
    late = running[0]
    for round_ in range(14):
        job = running.pop(0)
        running += study.tell_report(world.report(job))
        place(running[2:3])
        if round_ == 6:
            place([late])  # it ended: nothing is recorded
            study.recover("second:2")
            running = study.set_capacity(4)
            place(running[:2])
    return study


def state_copied(study: Study, key: JobKey) -> list[Job]:
    """What a version that wrote checkpoints while the next job trained recorded when a job left its slot."""
    return study._decide_and_record(StateCopied(*key))


def freed() -> Study:
    """Jobs leave their slots before their report; one fails then, one is said twice, a controller dies."""
    world = World(53, failures=0.1)
    study = fresh(make_spec(study="golden"), MemoryJournal(), world)
    running = study.set_capacity(2)
    for round_ in range(20):
        job = running.pop(0)
        if round_ % 3:
            running += state_copied(study, job.key)
        if round_ == 4:
            state_copied(study, job.key)
        running += study.tell_report(world.report(job))
        if round_ == 10:
            state_copied(study, running[0].key)
            study.recover("second:2")
            running = study.set_capacity(2)
    return study


def beside() -> Study:
    """A packed study whose attempts say what was claimed of their device, and by how many jobs."""
    world = World(47, failures=0.1)
    packing = {"by": ["x"]}
    study = fresh(make_spec(study="golden", packing=packing), MemoryJournal(), world)
    gpu = {"architecture": "A100", "device": "GPU-5d4e", "share": (300, 6 * 10**9, 2000)}
    running = study.set_capacity(3)
    while running:
        job = running.pop(0)
        usage = Usage(memory=10**8, unit_seconds=0.5 + len(running) / 8, device_memory=2 * 10**9, **gpu)
        usage = msgspec.structs.replace(usage, load=300 * (1 + len(running)), jobs=1.0 + len(running))
        report = world.report(job)
        running += study.tell_report(
            report if report.outcome is Outcome.LOST else msgspec.structs.replace(report, usage=usage)
        )
    return study


def gangs() -> Study:
    """A study whose jobs are gangs of three slots, on five to eight slots, with retries."""
    world = World(53, failures=0.1)
    cluster = {"kind": "local", "workers": 8}
    study = fresh(make_spec(study="golden", training={"gang": 3}, cluster=cluster), MemoryJournal(), world)
    running = study.set_capacity(8)
    told = 0
    while running:
        running += study.tell_report(world.report(running.pop(0)))
        told += 1
        if told in (4, 8):
            running += study.set_capacity({4: 5, 8: 7}[told])
    return study


def growing() -> Study:
    """A study whose trials grow: its speeds are measured, on a number of slots that changes, with retries."""
    world = World(59, failures=0.1)
    cluster = {"kind": "local", "workers": 8}
    study = fresh(make_spec(study="golden", training={"gang": "auto"}, cluster=cluster), MemoryJournal(), world)
    running = study.set_capacity(5)
    told = 0
    while running:
        job = running.pop(0)
        report = world.report(job)
        if report.outcome is Outcome.COMPLETED:
            alone = 4.0 + job.trial % 3
            checkpoint = Checkpoint(f"t{job.trial}r{job.rung}", "ab", job.target, 7)
            usage = Usage(unit_seconds=alone / job.demand.slots**0.9)
            report = msgspec.structs.replace(report, checkpoint=checkpoint, usage=usage)
        running += study.tell_report(report)
        told += 1
        if told in (8, 20):
            running += study.set_capacity({8: 3, 20: 8}[told])
    return study


def hopped() -> Study:
    """A study whose models hop over partitions, two of them for validation, on workers that hold some of them."""
    files = [{"name": f"part-{place}", "count": 90 + place, "bytes": 5000 + place} for place in range(4)]
    validation = [{"name": f"val-{place}", "count": 20} for place in range(2)]
    held = {
        "worker-0": ["part-0", "part-1", "val-0", "val-1"],
        "worker-1": ["part-1", "part-2"],
        "worker-2": ["part-3", "part-0", "val-1"],
    }
    spec = StudySpec.from_plain(
        {
            "study": "golden",
            "objective": "lab:train",
            "metric": {"name": "loss", "mode": "min"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "search": {"method": "asha", "min_resource": 1, "max_resource": 4, "reduction_factor": 2, "configs": 8},
            "data": {"partitions": files, "validation": validation, "scheduler": "remaining"},
            "seed": 43,
        }
    )
    workers = [Worker(), Worker(speed=0.5), Worker(leaves=100.0)]
    counts = [*(90 + place for place in range(4)), 20, 20]
    held["worker-1"] += ["part-3", "part-0"]  # worker-2 leaves in the middle
    world = VirtualHopping(spec=spec, partitions=4, validation=2, workers=workers, holdings=held, counts=counts)
    return world.run().study


def hopped_failures() -> Study:
    """Attempts that fail or diverge within an epoch: the units before are in the journal."""
    spec = StudySpec.from_plain(
        {
            "study": "golden",
            "objective": "lab:train",
            "metric": {"name": "loss", "mode": "min"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "search": {"method": "sha", "min_resource": 1, "max_resource": 4, "reduction_factor": 2, "configs": 4},
            "data": {"partitions": [f"part-{place}" for place in range(3)]},
            "training": {"retries": {"error": 1}},
            "seed": 44,
        }
    )
    world = VirtualHopping(spec=spec)
    original = world.units._result

    def result(attempt: VirtualAttempt) -> Report:
        job, unit = attempt.job, attempt.job.unit
        bad = {(0, 0, 1): Outcome.ERROR, (2, 0, 2): Outcome.DIVERGED}.get((job.trial, job.attempt, unit.place))
        if bad is None:
            return original(attempt)
        return Report(trial=job.trial, attempt=job.attempt, outcome=bad, message="bad", ended=world.clock.now)

    world.units._result = result  # type: ignore[method-assign]
    return world.run().study


def decimal_factor() -> Study:
    """A study whose reduction factor is no binary number, and whose rungs often hold exact multiples of it."""
    world = World(23)
    search = {"method": "asha", "configs": 34, "min_resource": 1, "max_resource": 6, "reduction_factor": 1.6}
    study = fresh(make_spec(study="golden", search=search), MemoryJournal(), world)
    world.play(study)
    return study


METHODS = [
    "asha-brackets", "asha-shared", "asha-endless", "stopping-brackets", "sha", "hyperband", "pasha", "pbt",
    "pbt-truncation", "random", "grid", "pareto-asha-brackets",
]  # fmt: skip


def studies() -> dict[str, Study]:
    """All golden studies by the name of their file: each kind of event, each search method with failures."""
    found = {
        "every-event": every_kind_of_event(),
        "limited": limited(),
        "abandoned": abandoned(),
        "enqueued": enqueued(),
        "exhausted": exhausted(),
        "constrained": constrained(),
        "asked": asked(),
        "used": used(),
        "placed": placed(),
        "freed": freed(),
        "beside": beside(),
        "gangs": gangs(),
        "growing": growing(),
        "hopped": hopped(),
        "hopped-failures": hopped_failures(),
        "decimal-factor": decimal_factor(),
    }
    for name in METHODS:
        world = World(12, failures=0.05, nans=0.05)
        study = fresh(spec_of(name, study="golden"), MemoryJournal(), world)
        world.play(study)
        found[name] = study
    return found


def summary(study: Study) -> dict[str, object]:
    """What must come out of the journal again, whatever the version that reads it."""
    state = study.state
    return {
        "status": study.status,
        "entries": study.seq,
        "trials": [
            {
                "params": trial.params,
                "status": trial.status,
                "attempts": trial.attempts,
                "results": [[r.rung, r.resource, r.loss] for r in trial.results],
                "condemned": sorted(trial.condemned),
            }
            for trial in state.trials
        ],
        "rungs": [[rung.results, rung.promoted, rung.waiting] for rung in study.method.rungs()],
        "best": None if state.incumbent is None else [state.incumbent.trial, state.incumbent.resource],
        "counts": [state.completed_jobs, state.abandoned_trials, state.failed_attempts, state.ignored_reports],
    }


def main() -> None:
    for name, study in studies().items():
        if (FOLDER / f"{name}-format-{FORMAT}.jsonl").exists():  # never edited
            continue
        lines = [encode_entry(entry) + "\n" for entry in study.journal.entries("golden")]
        (FOLDER / f"{name}-format-{FORMAT}.jsonl").write_text("".join(lines))
        (FOLDER / f"{name}-format-{FORMAT}.json").write_text(json.dumps(summary(study), indent=1) + "\n")


if __name__ == "__main__":
    main()
