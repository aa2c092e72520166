"""Shared devices and their jobs in words, for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.model.devices.memory_words import memory_words
from hpo_core.model.events import JobGranted, JobPlaced
from hpo_core.study import Study
from hpo_core.views.formatting import plural
from hpo_core.views.jobs.device_use import DeviceUse, device_jobs, device_uses

LATEST_SECONDS = 60.0


def granted_words(study: Study, placed: int | None = None) -> str:
    """``2 running``; ``2 running on 8 slots`` in gangs; ``8 running, 9 waiting for a device`` where jobs share devices.

    Args:
        placed: jobs that run on a device, from who placed them; None: what the journal says, which is a second older.
    """
    granted = len(study.state.running)
    if study.spec.packing is None:
        slots = study.state.slots_in_use
        return f"{granted:,} running" + (f" on {slots:,} slots" if slots > granted else "")
    runs = min(len(study.state.placed) if placed is None else placed, granted)
    return f"{runs:,} running" + (f", {granted - runs:,} waiting for a device" if granted > runs else "")


def running_lines(study: Study, *, devices: int = 16, jobs: int = 8) -> list[str]:
    """The jobs that run, a line for each of the devices that they share, and one for those that wait.

    Args:
        devices: lines; another one says how many more there are.
        jobs: of a line, likewise.
    """
    state = study.state
    by_device: dict[tuple[str, str], list[JobPlaced]] = {}
    for placed in state.placed.values():
        by_device.setdefault((placed.device, placed.architecture), []).append(placed)
    lines = []
    for (name, architecture), own in sorted(by_device.items()):
        compute, memory = (sum(placed.share[k] for placed in own) for k in (0, 1))
        claimed = f"{memory_words(memory)} and {compute / 10:.0f}% of compute claimed"
        each = [f"{_goal(state.running[one.trial])} ({memory_words(one.share[1])})" for one in own]
        lines.append(f"running on {name} ({architecture}; {claimed}): {_some(each, jobs)}")
    more = [f"and on {plural(len(lines) - devices, 'device')} more"] if len(lines) > devices else []
    waiting = [_goal(grant) for number, grant in state.running.items() if number not in state.placed]
    return [*lines[:devices], *more, *([f"waiting for a device: {_some(waiting, jobs)}"] if waiting else [])]


def _goal(grant: JobGranted) -> str:
    return f"trial {grant.trial} to {grant.target:,}"


def _some(words: Sequence[str], most: int) -> str:
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"


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
