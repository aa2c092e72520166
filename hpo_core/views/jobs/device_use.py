"""What the devices of a packed study did: jobs at once, memory and compute over time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import msgspec

from hpo_core.model.devices.measurement import is_cpu
from hpo_core.model.devices.usage import Usage
from hpo_core.model.events import AttemptFailed, JobCompleted, JobPlaced
from hpo_core.state import StudyState
from hpo_core.views.usage_words import usage_of

_WHOLE = 1000
"""Permille of a device's compute."""


class DeviceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt on a shared device."""

    trial: int
    attempt: int
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


def device_job(
    trial: int, attempt: int, usage: Usage | None, *, begin: float, end: float, failed: bool = False
) -> DeviceJob | None:
    """One attempt's; None where it did not share a device, or where that was never told (it was lost)."""
    if usage is None or not usage.device or usage.share is None:
        return None
    compute, claimed, _ = usage.share
    return DeviceJob(
        trial=trial,
        attempt=attempt,
        device=usage.device,
        architecture=usage.architecture,
        begin=begin,
        end=max(begin, end),
        compute=compute,
        claimed=claimed,
        used=usage.memory if is_cpu(usage.architecture) else usage.device_memory or 0,
        failed=failed,
    )


def running_job(placed: JobPlaced, *, begin: float, end: float) -> DeviceJob:
    """An attempt that runs; ``end`` is now."""
    compute, claimed, _ = placed.share
    return DeviceJob(
        trial=placed.trial,
        attempt=placed.attempt,
        device=placed.device,
        architecture=placed.architecture,
        begin=begin,
        end=max(begin, end),
        compute=compute,
        claimed=claimed,
        used=0,
        running=True,
    )


def device_jobs(state: StudyState) -> list[DeviceJob]:
    """All that ended on shared devices; of a target that was reached, the attempts that failed before are forgotten."""
    ended: Iterable[JobCompleted | AttemptFailed] = itertools.chain.from_iterable(
        (*trial.all_results, *trial.failures) for trial in state.trials
    )
    found = (
        device_job(
            event.trial,
            event.attempt,
            usage_of(event),
            begin=event.started,
            end=event.ended,
            failed=isinstance(event, AttemptFailed),
        )
        for event in ended
    )
    return [job for job in found if job is not None]


def device_uses(jobs: Iterable[DeviceJob], ratio: Callable[[str], float] = lambda architecture: 1.0) -> list[DeviceUse]:
    """By name of the device; the time of all is that from the first job's begin to the last one's end.

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
    """Over all devices; None where there is none."""
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
