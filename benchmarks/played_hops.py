"""Hop schedules played in virtual time: makespan, idle workers, bytes moved."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

import msgspec

from hpo_core.hopper.board import PlannedUnit, UnitEnd
from hpo_core.hopper.hop_schedule import HopSchedule


class PlayedUnit(msgspec.Struct, frozen=True, gc=False):
    """A unit, from when to when it ran, and whether it counted."""

    unit: PlannedUnit
    begin: float
    end: float
    counted: bool


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a played schedule."""

    units: list[PlayedUnit]
    """Units in the order of their ends; a unit on a lost worker ends when the worker is lost."""
    makespan: float
    """Virtual seconds until the last unit ended."""
    hops: int
    """Units that began on another worker than where the configuration's last unit had run: one model moved each.

    The first unit of a configuration counts, for the model has to get there.
    """

    def idle_share(self, workers: int) -> float:
        busy = sum(played.end - played.begin for played in self.units)
        return 1 - busy / (workers * self.makespan) if self.makespan else 0.0


def play(
    schedule: HopSchedule,
    seconds: Callable[[PlannedUnit], float],
    *,
    happenings: Iterable[tuple[float, Callable[[HopSchedule], PlannedUnit | None]]] = (),
    on_end: Callable[[HopSchedule, PlannedUnit, UnitEnd], object] = lambda schedule, unit, end: None,
) -> Played:
    """Plays a schedule until nothing is in flight and nothing more happens.

    Args:
        schedule: with its workers, and the configurations that are there at the start.
        seconds: how long a unit takes.
        happenings: what else happens and when, such as ``lambda schedule: schedule.worker_lost("a")``. A unit that it
            returns ends there and then.
        on_end: called after the end of each unit; may add configurations.

    >>> schedule = HopSchedule(2)
    >>> for place, worker in enumerate("ab"):
    ...     schedule.worker_joined(worker, [place])
    >>> for configuration in range(2):
    ...     schedule.add(configuration, to=3)
    >>> played = play(schedule, lambda unit: 1.0)
    >>> played.makespan, played.idle_share(2), played.hops
    (6.0, 0.0, 12)
    """
    events: list[tuple[float, int, PlannedUnit | Callable[[HopSchedule], PlannedUnit | None]]] = []
    for number, (time, happening) in enumerate(happenings):
        events.append((time, number - 2**60, happening))
    heapq.heapify(events)
    begins: dict[int, float] = {}
    units: list[PlayedUnit] = []
    at: dict[int, str] = {}
    now, hops = 0.0, 0

    def begin() -> None:
        nonlocal hops
        for unit in schedule.next_units():
            begins[unit.number] = now
            hops += at.get(unit.configuration) != unit.worker
            at[unit.configuration] = unit.worker
            heapq.heappush(events, (now + seconds(unit), unit.number, unit))

    begin()
    while events:
        now = events[0][0]
        while events and events[0][0] == now:  # what happens at once is known at once
            event = heapq.heappop(events)[2]
            if not isinstance(event, PlannedUnit):
                lost = event(schedule)
                if lost is not None and lost.number not in {each.number for each in schedule.in_flight()}:
                    units.append(PlayedUnit(lost, begins.pop(lost.number), now, False))
            elif event.number in begins:
                began = begins.pop(event.number)
                end = schedule.unit_ended(event, seconds=now - began)
                units.append(PlayedUnit(event, began, now, end.counted))
                on_end(schedule, event, end)
        begin()
    return Played(units=units, makespan=max((each.end for each in units), default=0.0), hops=hops)


def lower_bound(seconds: Sequence[Sequence[float]]) -> float:
    """No schedule ends before: the busiest worker or the longest configuration, whichever is longer.

    Args:
        seconds: of one epoch's units, by configuration and partition; each partition lies on a worker of its own.

    >>> lower_bound([[1.0, 2.0], [3.0, 4.0]])
    7.0
    """
    return max(max(map(sum, seconds)), max(map(sum, zip(*seconds, strict=True))))
