"""Gang sizes: the ranks, and so slots, of the next job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

import msgspec

from hpo_core.model.events import JobGranted
from hpo_core.search.method import Promote, SearchMethod
from hpo_core.spec import StudySpec
from hpo_core.spec.sections import ScalingSpec
from hpo_core.state import StudyState

AllReduce = Literal["butterfly", "tree", "ring"]
"""The way in which ranks exchange their sums."""


def rounds(ranks: int, scheme: AllReduce) -> float:
    """Number of times that all bytes cross one link, one after another.

    Butterfly: ceil(log2 g) exchanges of everything. Tree: as many to sum, as many to tell the sum. Ring: 2 (g - 1)
    steps of one g-th. The first two are Paleo's; the ring is what NCCL and gloo do for large arrays.

    >>> [rounds(8, scheme) for scheme in ("butterfly", "tree", "ring")]
    [3, 6, 1.75]
    >>> rounds(1, "tree")
    0
    """
    levels = (ranks - 1).bit_length()
    if scheme == "butterfly":
        return levels
    return 2 * levels if scheme == "tree" else 2 * (ranks - 1) / ranks


class StepTime(NamedTuple):
    """Seconds of a step; communication follows computation."""

    compute: float
    communication: float

    @property
    def total(self) -> float:
        return self.compute + self.communication


class StepModel(Protocol):
    """Seconds of a step."""

    def step(self, gpus: int) -> StepTime:
        """Each of ``gpus`` computes its part of the global batch, then all sum their gradients."""
        ...


class FittedModel(msgspec.Struct, frozen=True):
    """Two parameters, fitted to measured times alone: c / g + m * rounds(g)."""

    compute: float
    """c: seconds on one GPU."""
    exchange: float
    """m: seconds of one round of communication."""
    all_reduce: AllReduce = "butterfly"

    def step(self, gpus: int) -> StepTime:
        return StepTime(self.compute / gpus, self.exchange * rounds(gpus, self.all_reduce))


def fitted(measured: Mapping[int, float], all_reduce: AllReduce = "butterfly") -> FittedModel:
    """The model of two parameters for measured seconds of the same work.

    c = M(1); m is the least squares solution, at least 0, of  (c / g + m * rounds(g)) / M(g) = 1  over g > 1.
    With M(1) and M(2) alone, m = (M(2) - M(1) / 2) / rounds(2). With M(1) alone, m is 0.

    >>> model = fitted({1: 100.0, 2: 55.0})
    >>> [round(model.step(gpus).total, 2) for gpus in (1, 2, 4, 8)]
    [100.0, 55.0, 35.0, 27.5]
    """
    base = seconds_alone(measured)
    pairs = [
        (rounds(gpus, all_reduce) / seconds, 1 - base / gpus / seconds)
        for gpus, seconds in measured.items()
        if gpus > 1
    ]
    return FittedModel(base, slope(pairs) if pairs else 0.0, all_reduce)


def seconds_alone(measured: Mapping[int, float]) -> float:
    """The seconds that were measured on one GPU.

    Raises:
        ValueError: there are none, or a time is not positive.
    """
    wrong = {gpus: seconds for gpus, seconds in measured.items() if gpus < 1 or not 0 < seconds < float("inf")}
    if wrong or 1 not in measured:
        raise ValueError(
            f"Measured seconds {dict(measured)}: there must be one of 1 GPU, and all must be positive numbers. "
            "Measure the same work on one GPU, too."
        )
    return measured[1]


def slope(pairs: list[tuple[float, float]]) -> float:
    """b of y = b x by least squares, at least 0."""
    return max(0.0, sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs))


def doublings(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to ``most``.

    >>> doublings(20)
    (1, 2, 4, 8, 16)
    """
    return tuple(1 << level for level in range(most.bit_length()))


def speedups(model: StepModel, sizes: Iterable[int]) -> dict[int, float]:
    """Speed-up of a step over one GPU, by number of GPUs; at most linear."""
    alone = model.step(1).total
    return {gpus: min(float(gpus), alone / model.step(gpus).total) for gpus in sizes}


def kappa(gains: Mapping[int, float], efficiency: float = 0.75) -> int:
    """The largest number of GPUs whose speed-up is at least ``efficiency`` of linear; 1 where there is none.

    >>> kappa({2: 1.9, 4: 3.4, 8: 5.0}), kappa({2: 1.9, 4: 3.4, 8: 5.0}, 0.9)
    (4, 2)
    """
    wanted = efficiency * (1 - 1e-12)  # 0.7 * 3 is below 2.1 in floats
    return max((gpus for gpus, gain in gains.items() if gain >= wanted * gpus), default=1)


PILOT = 2
"""Ranks of the first gang, where speed-ups are measured."""


class GangSizes:
    """Ranks of a study's jobs: the same for all.

    Where models hop, a job is one configuration on one slot, whatever the number of workers that its units take
    (:mod:`hpo_core.hopper.unit_times`).
    """

    def __init__(self, fixed: int, method: SearchMethod) -> None:
        self._fixed, self._method = fixed, method

    def next(self, failed: JobGranted | None = None) -> int:
        """Ranks of the next job. A rerun follows its record; a job that is tried again has as many ranks as before.

        Args:
            failed: the grant of the job that is tried again; None: it is a new one.
        """
        return failed.demand.slots if failed is not None else self._method.recorded_slots() or self._fixed

    def least(self) -> int:
        """Slots without which the next job cannot begin."""
        return self.next()

    def largest(self, slots: int) -> int:
        """Ranks that one trial may have of ``slots``."""
        return self._fixed

    def demanded(self, slots: int) -> int:
        return self.next()

    def grown(self, slots: int) -> int:
        """Slots of ``slots`` that all running trials could use, if each ended its job now and went on; 0: no more."""
        return 0

    def words(self) -> str:
        """The size, for people; empty where each job takes a slot."""
        return f"{self._fixed} ranks a job" if self._fixed > 1 else ""


class GrowingGangSizes(GangSizes):
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
        sizes = sizes_up_to(self.largest(state.capacity), self._scaling)
        return grown_size(room, jobs_waiting(state, method, room), sizes)

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
        return kappa(speedups(fitted(measured), doublings(most)), scaling.efficiency)

    def demanded(self, slots: int) -> int:
        return self.largest(slots)

    def grown(self, slots: int) -> int:
        return self.largest(slots) * len(self._state.running)

    def words(self) -> str:
        scaling, speeds = self._scaling, self._state.speeds
        largest = self.largest(max(2, self._state.capacity))
        found = (
            f"auto: a trial may grow to {largest} slot{'s' * (largest > 1)} (at least {scaling.efficiency:.0%} of "
            "linear"
        )
        if scaling.speedups:
            return f"{found}, speed-ups given)"
        times = ", ".join(
            f"{ranks} ranks are {1 / seconds:.2f} times as fast"
            for ranks, seconds in ({} if speeds is None else speeds.relative).items()
            if ranks > 1
        )
        return f"{found}; measured: {times or 'nothing yet'})"


def gang_sizes(spec: StudySpec, state: StudyState, method: SearchMethod) -> GangSizes:
    fixed = spec.job_slots
    return GrowingGangSizes(spec.scaling, state, method) if fixed is None else GangSizes(fixed, method)


def grown_size(room: int, waiting: int, sizes: Iterable[int]) -> int:
    """The largest of ``sizes`` that leaves each waiting job as many of the free slots; 1 where there is none.

    >>> [grown_size(room, 8, (1, 2, 4)) for room in (32, 16, 15, 4)]
    [4, 2, 1, 1]
    """
    part = room // max(1, waiting)
    return max((size for size in sizes if size <= part), default=1)


def jobs_waiting(state: StudyState, method: SearchMethod, most: int) -> int:
    again = len(state.waiting)
    return again + method.grantable(max(0, most - again))


def sizes_up_to(largest: int, scaling: ScalingSpec) -> tuple[int, ...]:
    if scaling.speedups:
        return tuple(size for size in (1, *sorted(scaling.speedups)) if size <= largest)
    return doublings(largest)


def _is_pilot(scaling: ScalingSpec, state: StudyState, method: SearchMethod) -> bool:
    speeds = state.speeds
    if speeds is None or speeds.has_gangs or not speeds.relative or state.capacity < PILOT:
        return False
    action = method.next_action()
    return isinstance(action, Promote) and speeds.knows(action.trial)
