"""States of studies, trials and attempts: one table of words, their names in MLflow and Prefect; a trial's story."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.devices.measurement import UsageField
from hpo_core.model.events import AttemptFailed, AttemptReported, Entry, JobCompleted, JobGranted
from hpo_core.model.trial import Outcome
from hpo_core.state import TrialRecord
from hpo_core.study import Study
from hpo_core.views.formatting import duration, plural
from hpo_core.views.rungs import RungNames


class AttemptWords(NamedTuple):
    """The word for an attempt in figures, and the name of its task run's state in Prefect."""

    word: str
    prefect: str


_ATTEMPTS = {
    None: AttemptWords("running", "Running"),
    Outcome.COMPLETED: AttemptWords("completed", "Completed"),
    Outcome.DIVERGED: AttemptWords("diverged", "Completed"),
    Outcome.LOST: AttemptWords("lost or preempted", "Crashed"),
    Outcome.PREEMPTED: AttemptWords("lost or preempted", "Cancelled"),
}


def attempt_state(outcome: Outcome | None) -> AttemptWords:
    """State of an attempt by the way it ended; None: it runs."""
    return _ATTEMPTS.get(outcome, AttemptWords("failed", "Failed"))


def study_word(study: Study, *, driven: bool) -> str:
    """``running``, ``interrupted`` (nobody drives it), ``halted`` or ``finished``."""
    return study.status if study.status != "open" else "running" if driven else "interrupted"


def grid_states(study: Study) -> dict[str, int] | None:
    """Number of a grid's configurations in each state (Liu et al., the job states); None for another method.

    One that failed is tried again, or was abandoned; one that diverged is complete.
    """
    if study.spec.search.grid(study.spec.search_space()) is None:
        return None
    found = dict.fromkeys(("pending", "in progress", "complete", "failed"), 0)
    for trial in study.state.trials:
        if trial.results:
            found["complete"] += 1
        elif study.state.trains(trial.number):
            found["in progress"] += 1
        else:
            found["failed" if trial.abandoned is not None or trial.failures else "pending"] += 1
    found["pending"] += max(0, sum(rung.expected for rung in study.method.rungs()) - len(study.state.trials))
    return found


def trial_state(study: Study, trial: TrialRecord) -> str:
    """``winner``, ``best so far``, ``completed``, ``not promoted``, ``diverged``, or the status of the trial.

    The winner is the best trial of a study that has ended or was halted. A trial without a finite loss at its end has
    diverged. ``paused`` means that it may still go on: nothing is paused once the study is finished.
    """
    best, status = study.best, trial.status
    if best is not None and best.trial == trial.number and status != "running":
        return "best so far" if study.status == "open" else "winner"
    if status in ("paused", "stopped") and trial.loss is None:
        return "diverged"
    if status == "paused" and study.status == "finished":
        outline = study.spec.search.outline()
        short = outline.max_resource is not None and trial.resource < outline.max_resource
        return "not promoted" if short and not outline.members else "completed"
    return status


def usage_words(usage: UsageField | None, *, unit: str = "unit") -> str:
    """All that is known; empty where nothing is.

    Args:
        unit: name of a unit of the resource: an epoch where models hop, and a unit is a pass over one partition.

    >>> from hpo_core.model.devices.measurement import Usage
    >>> usage_words(Usage(memory=212_400_000, cores=1.84, startup_seconds=0.61, unit_seconds=0.3))
    '212 MB, 1.84 cores, start-up 0.61 s, 0.3 s per unit'
    >>> usage_words(Usage(memory=212_400_000, unit_seconds=0.3), unit="epoch")
    '212 MB, 0.3 s per epoch'
    >>> usage_words(Usage(memory=10**9, device="GPU-5d", architecture="A100", device_memory=6 * 10**9, compute=0.28))
    '1 GB; of GPU-5d (A100) 6 GB, 28 % of its compute'
    >>> usage_words(Usage(memory=10**8, device="cpu:node-1", architecture="CPU", share=(250, 2 * 10**8, 500)))
    '100 MB; given 25 %, 200 MB, 0.5 cores of cpu:node-1 (CPU)'
    """
    if not usage:
        return ""
    parts = [
        memory_words(usage.memory) if usage.memory else "",
        f"{usage.cores:.3g} core{'' if usage.cores == 1 else 's'}" if usage.cores else "",
        f"start-up {duration(usage.startup_seconds)}" if usage.startup_seconds else "",
        f"{duration(usage.unit_seconds)} per {unit}" if usage.unit_seconds else "",
    ]
    of_device = [
        memory_words(usage.device_memory) if usage.device_memory is not None else "",
        f"{usage.compute:.0%} of its compute".replace("%", " %") if usage.compute is not None else "",
    ]
    name = f"{usage.device} ({usage.architecture})" if usage.architecture else usage.device or "its GPU"
    groups = [", ".join(filter(None, parts)), ", ".join(filter(None, of_device)), ""]
    if groups[1]:
        groups[1] = f"of {name} {groups[1]}"
    if usage.share is not None:
        compute, memory, cores = usage.share
        groups[2] = f"given {compute / 10:.3g} %, {memory_words(memory)}, {cores / 1000:.3g} cores of {name}"
    return "; ".join(filter(None, groups))


def _state_line(study: Study, trial: TrialRecord) -> str:
    state, word = study.state, trial_state(study, trial)
    if study.status == "finished":
        return f"at the study's end: {word}"
    placed = state.placed.get(trial.number)
    if placed is not None:
        return f"now {trial.status} on {placed.device}, with {memory_words(placed.share[1])} of its memory"
    if trial.running and trial.granted is not None and trial.granted.demand.slots > 1:
        return f"now running in a gang of {trial.granted.demand.slots} ranks"
    if trial.running and not state.trains(trial.number):
        return "now waiting for a device"
    return f"now {trial.status}" if word == trial.status else f"now {trial.status}: {word}"


def trial_story(study: Study, number: int) -> list[str]:
    """Story of a trial, one line each; the last one says what it is now, or was when the study ended."""
    spec, state = study.spec, study.state
    trial, names = state.trials[number], RungNames(spec)

    def trained(resource: int) -> str:  # where models hop, a unit is a pass over one partition
        return plural(resource, spec.unit_word)

    def used(usage: UsageField) -> str:
        words = usage_words(usage, unit=spec.unit_word)
        return f"; used {words}" if words else ""

    lines = [f"trial {number} created in bracket {trial.bracket}: {trial.params}"]
    if trial.queued:
        lines.append("its configuration, or a part of it, was given by a person (start_with, enqueue)")
    for r in trial.results:
        rung = f"reached {names.label(r.stage.bracket, r.stage.rung)}"
        reported = "no finite value"
        if r.loss is not None:
            reported = ", ".join(f"{one.name} {r.metrics.get(one.name)}" for one in spec.objectives)
        values = [(name, r.metrics.get(name, 0.0)) for name in spec.constraints]
        violated = ", ".join(f"{name} = {value:.6g}" for name, value in values if value > 0 and r.violation)
        broken = f"; infeasible: {violated}" if violated else ""
        lines.append(f"{rung} ({trained(r.resource)}) in attempt {r.attempt}: {reported}{broken}{used(r.usage)}")
    lines += [f"{failure_line(f)}{used(f.usage)}" for f in trial.failures]
    lines += [
        f"its checkpoint at {trained(r.resource)} was removed to stay within the study's "
        f"budget for checkpoints (chance of promotion {r.chance:.2g})"
        for r in trial.removed
    ]
    if trial.stopped is not None:
        lines.append(names.stop_line(trial.stopped))
    if (abandoned := trial.abandoned) is not None:
        where = "at" if trial.is_at(abandoned) else "on the way to"
        lines.append(f"abandoned {where} {names.label(abandoned.bracket, abandoned.rung)}: {abandoned.reason}")
    lines.append(_state_line(study, trial))
    return lines


def failure_line(failure: AttemptFailed) -> str:
    word = "was lost" if failure.outcome is Outcome.LOST else f"failed ({failure.outcome})"
    return f"attempt {failure.attempt} (training to {failure.target}) {word}: {failure.message}"


def attempt_lines(entries: Iterable[Entry], trial: int) -> list[str]:
    """Further lines about the trial's attempts: those that were repeated, ranks, warnings."""
    ranks: dict[int, int] = {}
    failed: list[str] = []
    repeated: list[str] = []
    warned: list[str] = []
    for entry in entries:
        for event in entry.events:
            if isinstance(event, JobGranted) and event.trial == trial and event.demand.slots > 1:
                ranks[event.attempt] = event.demand.slots
            elif isinstance(event, AttemptFailed) and event.trial == trial:
                failed.append(failure_line(event))
            elif isinstance(event, JobCompleted) and event.trial == trial:
                repeated, failed = repeated + failed, []
        if isinstance(entry.stimulus, AttemptReported) and entry.stimulus.report.trial == trial:
            report = entry.stimulus.report
            warned += [f"attempt {report.attempt} warned: {line}" for line in report.warnings or ()]
    gangs = [f"attempt {attempt} was a gang of {number} ranks" for attempt, number in sorted(ranks.items())]
    return [*repeated, *gangs, *warned]
