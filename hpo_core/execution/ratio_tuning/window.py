"""Measures the jobs of a study for some seconds while all of them train, then ends it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from hpo_core.execution.executor import Executor
from hpo_core.execution.ratio_tuning.choice import Together
from hpo_core.model.devices.inventory import Portion
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.study import Study

_GOOD = (Outcome.COMPLETED, Outcome.DIVERGED, Outcome.PREEMPTED)
_OVERHEAD = 0.1
"""Seconds between two jobs of a device that nobody measures as start-up."""

_AMONG_ALL = 0.9
"""Part of its time that a job must have trained beside all others to count."""


class MeasuredWindow:
    """An observer of the loop. The window opens once each running job has shown a profile or a unit.

    Args:
        study: whose jobs are measured; it is halted when the window closes.
        placer: of the same loop.
        executor: of the same loop, whose clock counts.
        seconds: that the window is open.
        patience: seconds after which it is given up where too few units end.
    """

    def __init__(
        self, study: Study, placer: SharedDevices, executor: Executor, *, seconds: float, patience: float
    ) -> None:
        self.failure: Report | None = None
        """Of an attempt that failed: then the window was closed before its time."""
        self.is_complete = False
        """Whether it was open to its end, and a unit ended on each architecture."""
        self._study = study
        self._placer = placer
        self._executor = executor
        self._seconds = seconds
        self._gives_up = executor.now() + patience
        self._closes: float | None = None
        self._reports: list[Report] = []
        self._shares: dict[tuple[int, int], Portion] = {}
        self._most: Counter[str] = Counter()

    def on_report(self, report: Report, granted: list[Job]) -> None:
        """Keep it; a failure ends the window, but for one of memory where the job is tried again alone."""
        self._note(self._placer.shares())
        self._reports.append(report)
        is_retried = report.outcome is Outcome.OUT_OF_MEMORY and self._study.state.trials[report.trial].running
        if report.outcome not in _GOOD and not is_retried and self.failure is None:
            self.failure = report
            self._end("a job failed")

    def on_tick(self) -> None:
        """Open or close the window."""
        held, seen, now = self._placer.shares(), self._placer.usages(), self._executor.now()
        self._note(held)
        if self._study.state.halted is not None:
            self._executor.cancel(sorted(held))  # again at every tick: one may have been on its way to its worker
            return
        if not held:
            return
        if self._closes is None and (held.keys() <= seen.keys() or len(self._reports) >= len(held)):
            self._closes = now + self._seconds
            self._most.clear()  # what ran before may be fewer, or more: some waited for the first ones' measurements
            self._note(held)
        if self._closes is not None and now >= self._closes and self._all_trained(held, seen):
            self.is_complete = True
            self._end("it was measured")
        elif now >= self._gives_up:
            self._end("too few units ended")

    def close(self) -> None:
        """Nothing is open."""

    def _end(self, why: str) -> None:
        if self._study.state.halted is None:
            self._study.stop(why)
            self._executor.cancel(sorted(self._placer.shares()))

    def _note(self, held: Mapping[tuple[int, int], Portion]) -> None:
        self._shares |= held
        for name, count in Counter(share.architecture for share in held.values()).items():
            self._most[name] = max(self._most[name], count)

    def _all_trained(self, held: Mapping[tuple[int, int], Portion], seen: Mapping[tuple[int, int], Usage]) -> bool:
        """Whether each job that runs has ended a unit, or as many as run have ended."""
        ended = Counter(usage.architecture for usage in map(_usage, self._reports) if usage.unit_seconds)
        for name, count in Counter(share.architecture for share in held.values()).items():
            keys = [key for key, share in held.items() if share.architecture == name]
            trained = sum(key in seen and seen[key].unit_seconds > 0 for key in keys)
            if trained < count and ended[name] < count:
                return False
        return True

    def results(self, ratio: float | None) -> dict[str, Together]:
        """By architecture, what its jobs reached; one on which no unit ended is left out."""
        by_name: dict[str, list[tuple[Report, Usage]]] = defaultdict(list)
        for report in self._reports:
            usage = _usage(report)
            if usage.unit_seconds > 0 and report.outcome in _GOOD:
                by_name[usage.architecture].append((report, usage))
        return {name: self._result(name, found, ratio) for name, found in sorted(by_name.items()) if self._most[name]}

    def _result(self, name: str, found: list[tuple[Report, Usage]], ratio: float | None) -> Together:
        counted = _among_all(found)
        trained = [max(_trained(report, usage), usage.unit_seconds) for report, usage in counted]
        units = sum(seconds / usage.unit_seconds for seconds, (_, usage) in zip(trained, counted, strict=True))
        memory, capacity = self._peak(name, found)
        return Together(
            ratio=ratio,
            jobs=self._most[name],
            units_per_second=self._most[name] * units / sum(trained),
            memory=memory,
            capacity=capacity,
        )

    def _peak(self, name: str, found: Iterable[tuple[Report, Usage]]) -> tuple[int, int]:
        """(bytes used at once, bytes there are) of the fullest device."""
        peaks: dict[str, list[int]] = defaultdict(list)
        for _, usage in found:
            peaks[usage.device].append((usage.device_memory if usage.device_memory is not None else usage.memory) or 0)
        here = [share for share in self._shares.values() if share.architecture == name]
        at_once = -(-self._most[name] // max(len({share.device for share in here}), 1))
        most = max(sum(sorted(amounts)[-at_once:]) for amounts in peaks.values())
        return most, max(share.capacity for share in here)

    def start_is_most(self) -> bool:
        """Whether the jobs that ended spent more time on starting than on training."""
        ended = [(report, _usage(report)) for report in self._reports if report.outcome is Outcome.COMPLETED]
        starting = sum(usage.startup_seconds + _OVERHEAD for _, usage in ended)
        return bool(ended) and starting > sum(_trained(report, usage) for report, usage in ended)


def _among_all(found: list[tuple[Report, Usage]]) -> list[tuple[Report, Usage]]:
    """Those that trained nearly all their time beside as many others as ever.

    The process of the first job is there before the cluster starts; those of the others take seconds, in which it is
    alone and quicker.
    """
    began = [report.started + usage.startup_seconds for report, usage in found]
    changes = sorted([(at, 1) for at in began] + [(report.ended, -1) for report, _ in found])
    most = at_once = 0
    since = began[0]
    for at, change in changes:
        at_once += change
        if at_once > most:
            most, since = at_once, at
    good = [
        one
        for one, at in zip(found, began, strict=True)
        if one[0].ended - max(at, since) >= _AMONG_ALL * (one[0].ended - at)
    ]
    return good or found


def _usage(report: Report) -> Usage:
    return report.usage if isinstance(report.usage, Usage) else Usage()


def _trained(report: Report, usage: Usage) -> float:
    return max(0.0, report.ended - report.started - usage.startup_seconds)
