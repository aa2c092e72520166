"""Attempts of a study, and the devices that they share: jobs at once, memory and compute over time, also in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.devices.measurement import Usage, is_cpu
from hpo_core.model.events import JobPlaced
from hpo_core.model.features import FEATURES, feature
from hpo_core.model.trial import RESULTS, Outcome
from hpo_core.spec.packing import PackingSpec
from hpo_core.study import Study
from hpo_core.views.formatting import listed, plural


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt on one worker."""

    trial: int
    attempt: int
    target: int
    """Resource it aims at."""
    start: float
    """Seconds, as is ``end``; of one that runs, ``end`` is now."""
    end: float
    worker: str = ""
    outcome: Outcome | None = None
    """Way it ended; None while it runs."""
    origin: int = 0
    """Resource it started from (0: from nothing)."""
    value: float | None = None
    """The metric it reached, None where there is none or it is not finite."""
    usage: Usage | None = None
    """Use of its machine, where that was measured."""
    slots: int = 1
    """Slots that it held: the ranks of a gang, or one."""
    shared: Usage | JobPlaced | None = None
    """Device and share of it; None where it had a whole one, or where that was never told (it was lost)."""


def sharing(on: Usage | None) -> Usage | None:
    """Use of a device that an attempt shared; None where it had a whole one, or that was never told."""
    return None if on is None or not on.device or on.share is None else on


class DeviceLoad(msgspec.Struct, frozen=True):
    """Load of a device from a moment on."""

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

    @property
    def words(self) -> str:
        """One line.

        >>> DeviceUse(name="GPU-5d", architecture="A100", jobs=9, failed=0, most_at_once=4, claimed=6 * 10**9,
        ...     used=5 * 10**9, busy=0.9, occupancy=0.75, load=()).words
        'GPU-5d (A100): 9 jobs, at most 4 at once, 6 GB claimed, 5 GB used, 75% of compute claimed in the mean'
        """
        parts = [
            plural(self.jobs, "job"),
            f"{self.failed:,} failed" if self.failed else "",
            f"at most {self.most_at_once} at once",
            f"{memory_words(self.claimed)} claimed",
            f"{memory_words(self.used)} used" if self.used else "",
            f"{self.occupancy:.0%} of compute claimed in the mean",
        ]
        return f"{self.name} ({self.architecture}): {', '.join(filter(None, parts))}"


def device_uses(sharing: Iterable[tuple[Span, Usage | JobPlaced]], packing: PackingSpec) -> list[DeviceUse]:
    """Use of each shared device, by name; the time of all is that from the first job's begin to the last one's end.

    Args:
        sharing: attempts that share a device, each with its share.
    """
    by_device: dict[tuple[str, str], list[tuple[Span, Usage | JobPlaced]]] = {}
    for span, on in sharing:
        by_device.setdefault((on.device, on.architecture), []).append((span, on))
    every = [span for own in by_device.values() for span, _ in own]
    whole = max((span.end for span in every), default=0.0) - min((span.start for span in every), default=0.0)
    found = []
    for (name, architecture), own in sorted(by_device.items()):
        load = _load(own)
        times = [(now, then.time - now.time) for now, then in itertools.pairwise(load)]
        permille = sum(now.compute * seconds for now, seconds in times) / packing.ratio(architecture)
        found.append(
            DeviceUse(
                name=name,
                architecture=architecture,
                jobs=len(own),
                failed=sum(span.outcome not in (None, *RESULTS) for span, _ in own),
                most_at_once=max(now.jobs for now in load),
                claimed=max(now.claimed for now in load),
                used=max(now.used for now in load),
                busy=sum(seconds for now, seconds in times if now.jobs) / max(whole, 1e-9),
                occupancy=permille / 1000 / max(whole, 1e-9),
                load=load,
                running=sum(span.outcome is None for span, _ in own),
            )
        )
    return found


def mean_occupancy(uses: Iterable[DeviceUse]) -> float | None:
    """Mean occupancy of all devices; None where there is none."""
    each = [use.occupancy for use in uses]
    return sum(each) / len(each) if each else None


def _load(spans: Iterable[tuple[Span, Usage | JobPlaced]]) -> tuple[DeviceLoad, ...]:
    changes: dict[float, list[int]] = {}
    for span, on in spans:
        compute, claimed, _ = on.share or (0, 0, 0)
        used = 0
        if isinstance(on, Usage):
            used = on.memory if is_cpu(on.architecture) else on.device_memory or 0
        for time, sign in ((span.start, 1), (span.end, -1)):
            change = changes.setdefault(time, [0, 0, 0, 0])
            for place, amount in enumerate((1, claimed, used, compute)):
                change[place] += sign * amount
    now, found = [0, 0, 0, 0], []
    for time, change in sorted(changes.items()):
        now = [a + b for a, b in zip(now, change, strict=True)]
        found.append(DeviceLoad(time, *now))
    return tuple(found)


TO_RESUME = "to be resumed"
"""Jobs of a study that nobody drives: they run again once somebody does."""


def granted_words(study: Study, *, driven: bool = True) -> str:
    """``2 running``; of gangs ``2 running on 8 slots``; on shared devices ``8 running, 9 waiting for a device``.

    Args:
        driven: whether a controller drives the study; else ``2 to be resumed``.
    """
    state = study.state
    if not driven:
        return f"{len(state.running):,} {TO_RESUME}"
    runs, slots = sum(map(state.trains, state.running)), state.slots_in_use
    waiting = len(state.running) - runs
    return (
        f"{runs:,} running"
        + (f" on {slots:,} slots" if slots > len(state.running) else "")
        + (f", {waiting:,} waiting for a device" if waiting else "")
    )


def running_lines(
    study: Study, progress: Mapping[int, str] | None = None, *, devices: int = 16, jobs: int = 8, driven: bool = True
) -> list[str]:
    """The jobs that run, a line for each of the devices that they share, and one for those that wait.

    Args:
        progress: by trial, how far its job has come.
        devices: lines; another one says how many more there are.
        jobs: of a line, likewise.
        driven: whether a controller drives the study; else they run nowhere.
    """
    state, done = study.state, progress or {}
    goals: dict[int, str] = {}
    others: dict[str, list[str]] = {"running": [], "waiting for a device": []}
    for trial, grant in state.running.items():
        ranks = f" by {grant.demand.slots:,} ranks" if grant.demand.slots > 1 else ""
        goals[trial] = f"trial {trial} to {grant.target:,}{done.get(trial, '')}{ranks}"
        if trial not in state.placed:
            others["running" if state.trains(trial) else "waiting for a device"].append(goals[trial])
    if not driven:
        return [f"{TO_RESUME}: {listed(list(goals.values()), jobs)}"] if goals else []
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
    return [*lines[:devices], *more, *(f"{what}: {listed(some, jobs)}" for what, some in others.items() if some)]


def device_lines(uses: Sequence[DeviceUse], *, most: int = 16) -> list[str]:
    """A line per device, and one that counts those beyond ``most``."""
    more = [f"and {plural(len(uses) - most, 'device')} more"] if len(uses) > most else []
    return [*(use.words for use in uses[:most]), *more]


def measured_ratios(study: Study) -> dict[str, list[Any]]:
    """Known ratios of each architecture for which the study states none, by rising ratio."""
    found: dict[str, list[Any]] = {}
    return feature("packing", "estimates").measured_ratios(study) if "packing" in FEATURES else found


def measured_ratio_lines(found: Mapping[str, Iterable[Any]]) -> list[str]:
    """An architecture a line, such as ``work at once 0.90 at ratio 1 (12 attempts)``."""
    lines = []
    for name, seen in found.items():
        words = ", ".join(f"{one.work:.2f} at ratio {one.ratio:g} ({one.attempts} attempts)" for one in seen)
        lines.append(f"oversubscription measured on {name}: work at once {words}")
    return lines
