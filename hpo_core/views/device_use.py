"""Devices that jobs share: jobs at once, memory and compute over time, also in words."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import msgspec

from hpo_core.model.devices.measurement import is_cpu
from hpo_core.model.devices.memory_words import memory_words
from hpo_core.model.devices.usage import Usage
from hpo_core.model.events import AttemptFailed, JobCompleted, JobPlaced
from hpo_core.state import StudyState
from hpo_core.study import Study
from hpo_core.views.formatting import listed, plural
from hpo_core.views.trial_story import usage_of

_WHOLE = 1000
"""Permille of a device's compute."""


class DeviceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt on a shared device."""

    device: str
    architecture: str
    begin: float
    end: float
    compute: int
    """Permille of the device that it was given."""
    claimed: int
    """Bytes that it was given."""
    used: int
    """Peak of what it used of the same memory, in bytes; 0: not measured."""
    failed: bool = False
    running: bool = False


class DeviceLoad(msgspec.Struct, frozen=True):
    """What runs on a device from a moment on."""

    time: float
    jobs: int
    claimed: int
    """Bytes given to its jobs."""
    used: int
    """Bytes: the peaks of its jobs together, which they need not have reached at the same time."""
    compute: int
    """Permille of the device."""


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """A device over the whole study."""

    name: str
    architecture: str
    jobs: int
    """Attempts that ended on it, or run on it."""
    failed: int
    most_at_once: int
    claimed: int
    """The most bytes that its jobs were given at once."""
    used: int
    """The largest sum of peaks of jobs that ran at once."""
    busy: float
    """Share of the time with at least one job."""
    occupancy: float
    """Mean share of its compute that was given to jobs, oversubscription included: 1 is all of it."""
    load: tuple[DeviceLoad, ...]
    """In the order of time."""
    running: int = 0
    """Attempts that run on it."""


def device_job(on: Usage | JobPlaced | None, *, begin: float, end: float, failed: bool = False) -> DeviceJob | None:
    """One attempt on a shared device; None where it had a whole one, or where that was never told (it was lost).

    Args:
        on: what the attempt used, or for one that runs where it was placed.
        begin: seconds.
        end: seconds; of one that runs, now.
        failed: whether it brought no result.
    """
    if on is None or not on.device or on.share is None:
        return None
    compute, claimed, _ = on.share
    used = 0
    if isinstance(on, Usage):
        used = on.memory if is_cpu(on.architecture) else on.device_memory or 0
    return DeviceJob(
        device=on.device,
        architecture=on.architecture,
        begin=begin,
        end=max(begin, end),
        compute=compute,
        claimed=claimed,
        used=used,
        failed=failed,
        running=isinstance(on, JobPlaced),
    )


def device_jobs(state: StudyState) -> list[DeviceJob]:
    """All that ended on shared devices; of a target that was reached, the attempts that failed before are forgotten."""
    ended: Iterable[JobCompleted | AttemptFailed] = itertools.chain.from_iterable(
        (*trial.all_results, *trial.failures) for trial in state.trials
    )
    found = (
        device_job(usage_of(event), begin=event.started, end=event.ended, failed=isinstance(event, AttemptFailed))
        for event in ended
    )
    return [job for job in found if job is not None]


def device_uses(jobs: Iterable[DeviceJob], ratio: Callable[[str], float] = lambda architecture: 1.0) -> list[DeviceUse]:
    """Use of each device, by name; the time of all is that from the first job's begin to the last one's end.

    Args:
        ratio: how many times an architecture's compute may be given away.
    """
    by_device: dict[tuple[str, str], list[DeviceJob]] = {}
    for job in jobs:
        by_device.setdefault((job.device, job.architecture), []).append(job)
    first = min((job.begin for own in by_device.values() for job in own), default=0.0)
    last = max((job.end for own in by_device.values() for job in own), default=0.0)
    found = []
    for (name, architecture), own in sorted(by_device.items()):
        load = _load(own)
        spans = [(now, then.time - now.time) for now, then in itertools.pairwise(load)]
        whole = max(last - first, 1e-9)
        claimed = sum(now.compute * seconds for now, seconds in spans) / _WHOLE / ratio(architecture)
        found.append(
            DeviceUse(
                name=name,
                architecture=architecture,
                jobs=len(own),
                failed=sum(job.failed for job in own),
                most_at_once=max(now.jobs for now in load),
                claimed=max(now.claimed for now in load),
                used=max(now.used for now in load),
                busy=sum(seconds for now, seconds in spans if now.jobs) / whole,
                occupancy=claimed / whole,
                load=load,
                running=sum(job.running for job in own),
            )
        )
    return found


def mean_occupancy(uses: Iterable[DeviceUse]) -> float | None:
    """Mean occupancy of all devices; None where there is none."""
    each = [use.occupancy for use in uses]
    return sum(each) / len(each) if each else None


def _load(jobs: Iterable[DeviceJob]) -> tuple[DeviceLoad, ...]:
    """One for each moment at which something changed; it holds until the next."""
    changes: dict[float, list[int]] = {}
    for job in jobs:
        for time, sign in ((job.begin, 1), (job.end, -1)):
            change = changes.setdefault(time, [0, 0, 0, 0])
            for place, amount in enumerate((1, job.claimed, job.used, job.compute)):
                change[place] += sign * amount
    now, found = [0, 0, 0, 0], []
    for time, change in sorted(changes.items()):
        now = [a + b for a, b in zip(now, change, strict=True)]
        found.append(DeviceLoad(time, *now))
    return tuple(found)


LATEST_SECONDS = 60.0
"""Seconds before the latest end in which a job counts as a latest one."""


def granted_words(study: Study) -> str:
    """``2 running``; of gangs ``2 running on 8 slots``; on shared devices ``8 running, 9 waiting for a device``."""
    granted = len(study.state.running)
    if not study.spec.packs:
        slots = study.state.slots_in_use
        return f"{granted:,} running" + (f" on {slots:,} slots" if slots > granted else "")
    runs = len(study.state.placed)
    return f"{runs:,} running" + (f", {granted - runs:,} waiting for a device" if granted > runs else "")


def running_lines(study: Study, *, devices: int = 16, jobs: int = 8) -> list[str]:
    """The jobs that run, a line for each of the devices that they share, and one for those that wait.

    Args:
        devices: lines; another one says how many more there are.
        jobs: of a line, likewise.
    """
    state = study.state
    goals = {trial: f"trial {trial} to {grant.target:,}" for trial, grant in state.running.items()}
    by_device: dict[tuple[str, str], list[JobPlaced]] = {}
    for placed in state.placed.values():
        by_device.setdefault((placed.device, placed.architecture), []).append(placed)
    lines = []
    for (name, architecture), own in sorted(by_device.items()):
        compute, memory = (sum(placed.share[k] for placed in own) for k in (0, 1))
        claimed = f"{memory_words(memory)} and {compute / 10:.0f}% of compute claimed"
        each = [f"{goals[one.trial]} ({memory_words(one.share[1])})" for one in own]
        lines.append(f"running on {name} ({architecture}; {claimed}): {listed(each, jobs)}")
    more = [f"and on {plural(len(lines) - devices, 'device')} more"] if len(lines) > devices else []
    waiting = [goal for trial, goal in goals.items() if trial not in state.placed]
    return [*lines[:devices], *more, *([f"waiting for a device: {listed(waiting, jobs)}"] if waiting else [])]


def use_words(use: DeviceUse) -> str:
    """One device in a line.

    >>> use_words(DeviceUse(name="GPU-5d", architecture="A100", jobs=9, failed=1, most_at_once=4, claimed=6 * 10**9,
    ...     used=5 * 10**9, busy=0.9, occupancy=0.75, load=()))
    'GPU-5d (A100): 9 jobs, 1 failed, at most 4 at once, 6 GB claimed, 5 GB used, 75% of compute claimed in the mean'
    """
    parts = [
        plural(use.jobs, "job"),
        f"{use.failed:,} failed" if use.failed else "",
        f"at most {use.most_at_once} at once",
        f"{memory_words(use.claimed)} claimed",
        f"{memory_words(use.used)} used" if use.used else "",
        f"{use.occupancy:.0%} of compute claimed in the mean",
    ]
    return f"{use.name} ({use.architecture}): {', '.join(filter(None, parts))}"


def device_lines(study: Study, *, latest: bool = False, most: int = 16) -> list[str]:
    """A line per device; none where no job has ended on a shared one.

    Args:
        latest: only jobs that ended in the last minute before the latest one.
        most: devices; a line says how many more there are.
    """
    jobs = device_jobs(study.state)
    if latest and jobs:
        since = max(job.end for job in jobs) - LATEST_SECONDS
        jobs = [job for job in jobs if job.end >= since]
    packing = study.spec.packing
    uses: Sequence[DeviceUse] = device_uses(jobs) if packing is None else device_uses(jobs, packing.ratio)
    more = [f"and {plural(len(uses) - most, 'device')} more"] if len(uses) > most else []
    return [*map(use_words, uses[:most]), *more]
