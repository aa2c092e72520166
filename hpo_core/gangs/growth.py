"""Ranks, and so slots, of the next job where trials grow into free slots (``gang: auto``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpo_core.model.events import JobGranted
from hpo_core.search.method import Promote, SearchMethod
from hpo_core.spec.sections import ScalingSpec
from hpo_core.state import StudyState
from hpo_core.study.parts import JobSizes


def doublings(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to ``most``.

    >>> doublings(20)
    (1, 2, 4, 8, 16)
    """
    return tuple(1 << level for level in range(most.bit_length()))


def measured_speedups(measured: Mapping[int, float], sizes: Iterable[int]) -> dict[int, float]:
    """Speed-up over one slot by size, at most linear, from measured seconds of the same work.

    The seconds of g ranks are c / g + m * ceil(log2 g) with c = M(1), as all ranks sum their gradients pairwise; m is
    the least squares solution, at least 0, of (c / g + m * ceil(log2 g)) / M(g) = 1 over g > 1.

    >>> {size: round(gain, 2) for size, gain in measured_speedups({1: 100.0, 2: 55.0}, (1, 2, 4, 8)).items()}
    {1: 1.0, 2: 1.82, 4: 2.86, 8: 3.64}
    """
    alone = measured[1]
    pairs = [(_rounds(size) / seconds, 1 - alone / size / seconds) for size, seconds in measured.items() if size > 1]
    exchange = max(0.0, sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)) if pairs else 0.0
    return {size: min(float(size), alone / (alone / size + exchange * _rounds(size))) for size in sizes}


def _rounds(ranks: int) -> int:
    return (ranks - 1).bit_length()


def kappa(gains: Mapping[int, float], efficiency: float = 0.75) -> int:
    """The largest number of GPUs whose speed-up is at least ``efficiency`` of linear; 1 where there is none.

    >>> kappa({2: 1.9, 4: 3.4, 8: 5.0}), kappa({2: 1.9, 4: 3.4, 8: 5.0}, 0.9)
    (4, 2)
    """
    wanted = efficiency * (1 - 1e-12)  # 0.7 * 3 is below 2.1 in floats
    return max((gpus for gpus, gain in gains.items() if gain >= wanted * gpus), default=1)


PILOT = 2
"""Ranks of the first gang, where speed-ups are measured."""


class GrowingSizes(JobSizes):
    """Ranks where ``gang: auto`` lets trials grow into free slots, by :func:`grown_size`."""

    def __init__(self, scaling: ScalingSpec, state: StudyState, method: SearchMethod) -> None:
        super().__init__(1, method)
        self._scaling, self._state = scaling, state

    def next(self, failed: JobGranted | None = None) -> int:
        state, method = self._state, self._method
        recorded = 0 if failed is not None else method.recorded_slots()
        if recorded:
            return min(recorded, max(1, state.capacity))
        if failed is None and _is_pilot(self._scaling, state, method):
            return PILOT
        room = state.capacity - state.slots_in_use
        if room < 2:
            return 1
        largest, speedups = self.largest(state.capacity), self._scaling.speedups
        sizes = tuple(size for size in (1, *sorted(speedups)) if size <= largest) if speedups else doublings(largest)
        again = len(state.waiting)
        return grown_size(room, again + method.grantable(max(0, room - again)), sizes)

    def least(self) -> int:
        return 1

    def largest(self, slots: int) -> int:
        """Kappa: how many of ``slots`` one trial may use.

        Where speed-ups are measured alone, it is at most twice the largest size that was measured: two parameters
        fitted to one and two slots say little of 64. So it is 2 before anything is known, for slots that would be idle
        otherwise.
        """
        scaling, state = self._scaling, self._state
        most = max(1, slots)
        if scaling.speedups:
            given = {size: gain for size, gain in scaling.speedups.items() if size <= most}
            return kappa(given, scaling.efficiency)
        measured = state.speeds.relative if state.speeds is not None else {}
        most = min(most, 2 * max(measured, default=1))
        if len(measured) < 2:
            return most
        return kappa(measured_speedups(measured, doublings(most)), scaling.efficiency)

    def demanded(self, slots: int) -> int:
        return self.largest(slots)

    def grown(self, slots: int) -> int:
        return self.largest(slots) * len(self._state.running)

    def words(self) -> str:
        scaling, speeds = self._scaling, self._state.speeds
        largest = self.largest(max(2, self._state.capacity))
        least = f"at least {scaling.efficiency:.0%} of linear"
        found = f"auto: a trial may grow to {largest} slot{'s' * (largest > 1)} ({least}"
        if scaling.speedups:
            return f"{found}, speed-ups given)"
        times = ", ".join(
            f"{ranks} ranks are {1 / seconds:.2f} times as fast"
            for ranks, seconds in ({} if speeds is None else speeds.relative).items()
            if ranks > 1
        )
        return f"{found}; measured: {times or 'nothing yet'})"


def grown_size(room: int, waiting: int, sizes: Iterable[int]) -> int:
    """The largest of ``sizes`` that leaves each waiting job as many of the free slots; 1 where there is none.

    >>> [grown_size(room, 8, (1, 2, 4)) for room in (32, 16, 15, 4)]
    [4, 2, 1, 1]
    """
    part = room // max(1, waiting)
    return max((size for size in sizes if size <= part), default=1)


def _is_pilot(scaling: ScalingSpec, state: StudyState, method: SearchMethod) -> bool:
    speeds = state.speeds
    if speeds is None or speeds.has_gangs or not speeds.relative or state.capacity < PILOT:
        return False
    action = method.next_action()
    return isinstance(action, Promote) and speeds.knows(action.trial)
