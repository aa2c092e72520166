"""Neighbours: which jobs were on one device at the same time, and for how long."""

from __future__ import annotations

import math

import msgspec

from hpo_core.model.devices.measurement import MOST_NEIGHBOURS
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Job, JobKey, Report


class Stay:
    """A job on a device, from its beginning to its end.

    Args:
        began: when it was placed; minus infinity: not known.
        compute: permille of the device that it claims.
    """

    __slots__ = ("began", "compute", "device", "ended", "job")

    def __init__(self, job: Job, device: str, began: float, compute: int) -> None:
        self.job = job
        self.device = device
        self.compute = compute
        self.began = began
        self.ended = math.inf


class Neighbours:
    """Stays of jobs that run, and of those that ended while one of these ran.

    Times come with placements and reports. Of an attempt that ended its report says when it began.
    """

    def __init__(self) -> None:
        self._running: dict[JobKey, Stay] = {}
        self._ended: list[Stay] = []

    def begin(self, job: Job, device: str, *, compute: int, now: float | None) -> None:
        """A job was placed.

        Args:
            compute: permille of the device that it claims.
            now: None: not known; it then counts as being there all along.
        """
        self._running[job.key] = Stay(job, device, -math.inf if now is None else now, compute)

    def claims(self, key: JobKey, compute: int) -> None:
        """It was measured: it claims so much, and what it claimed before was a guess."""
        self._running[key].compute = compute

    def judge(self, report: Report, usage: Usage) -> tuple[Usage, list[tuple[Job, int]]]:
        """The usage with who was beside the attempt while it trained; and the jobs, each with permille of that time.

        Nothing is said of an attempt whose times are not known.
        """
        own = self._running.get((report.trial, report.attempt))
        if own is None or not report.ended > report.started > 0:
            return usage, []
        own.began, own.ended = report.started, report.ended
        begin, end = report.started + usage.startup_seconds, report.ended
        if not end > begin:
            return usage, []
        stays = [
            (max(stay.began, begin), min(stay.ended, end), stay)
            for stay in [*self._ended, *self._running.values()]
            if stay is not own and stay.device == own.device and stay.began < end and stay.ended > begin
        ]
        found = [(stay.job, round(1000 * (until - since) / (end - begin))) for since, until, stay in stays]
        load = own.compute + sum(stay.compute * (until - since) for since, until, stay in stays) / (end - begin)
        found = sorted((one for one in found if one[1]), key=lambda one: (-one[1], one[0].key))[:MOST_NEIGHBOURS]
        alone = 1000 - round(1000 * _covered([(since, until) for since, until, _ in stays]) / (end - begin))
        beside = tuple((job.trial, permille) for job, permille in found)
        return msgspec.structs.replace(usage, alone=alone, beside=beside, load=round(load)), found

    def end(self, key: JobKey) -> None:
        """It was released. It is remembered while one runs that began on its device before it ended."""
        stay = self._running.pop(key, None)
        if stay is not None and stay.ended < math.inf:
            self._ended.append(stay)
        first: dict[str, float] = {}
        for one in self._running.values():
            first[one.device] = min(first.get(one.device, math.inf), one.began)
        self._ended = [one for one in self._ended if one.ended > first.get(one.device, math.inf)]


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of spans."""
    total, reached = 0.0, -math.inf
    for since, until in sorted(spans):
        total += max(until - max(since, reached), 0.0)
        reached = max(reached, until)
    return total
