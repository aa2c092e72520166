"""How a training function waits for the process that watches it, and moves its clock; for objectives of tests.

A function that sleeps for a second in order to be seen, or to exceed a limit of half a second, does something else on a
busy machine. It waits here until it was seen, or until it was judged as of a time that it chose itself.
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import struct
import time
from collections.abc import Callable
from typing import Any

from hpo_core.model.stopwatch import Stopwatch

_MOVED = struct.Struct("<d")
_COUNTS = struct.Struct("<qq")
_PAGE = mmap.mmap(-1, mmap.PAGESIZE)
"""Shared by a zygote and its children: seconds moved at 0, then how often each of three was begun, and ended."""
_zygote = 0
_EXACT, _LOOKS, _JUDGEMENTS = 8, 24, 40
_STANDSTILL = 64


class MovedClock:
    """The module ``time``, with a monotonic clock that the training function moves."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() + float(_MOVED.unpack_from(_PAGE, 0)[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class MovedStopwatch(Stopwatch):
    """Seconds that are moved count as if the zygote had looked all the time, but for those of a standstill."""

    @property
    def max_gap(self) -> float:
        return self._usual if _PAGE[_STANDSTILL] else math.inf

    @max_gap.setter
    def max_gap(self, seconds: float) -> None:
        self._usual = seconds


def install() -> None:
    """Call it where an objective's module is imported by its zygote."""
    from hpo_core.training.child import meter, running_attempt, shared_progress, zygote

    clock: Any = MovedClock()
    for module in (running_attempt, shared_progress, zygote):
        vars(module)["time"] = clock
    usual = running_attempt._stopwatch
    vars(running_attempt)["_stopwatch"] = lambda *limits: MovedStopwatch(usual(*limits).max_gap, clock.monotonic)
    vars(meter)["_memory"] = _counted(meter._memory, _EXACT)
    watched: Any = meter.AttemptMeter
    watched.sample = _counted(watched.sample, _LOOKS)
    attempt: Any = running_attempt.RunningAttempt
    attempt.check = _counted(attempt.check, _JUDGEMENTS)
    global _zygote
    _zygote = os.getpid()


def move_clock(seconds: float) -> None:
    """Let so many seconds pass at once, for limits alone, and return when the attempt was judged with them.

    In the zygote itself, where no attempt has begun, nothing is waited for.
    """
    _MOVED.pack_into(_PAGE, 0, float(_MOVED.unpack_from(_PAGE, 0)[0]) + seconds)
    if os.getpid() != _zygote:
        _wait(_JUDGEMENTS)


def stand_still(seconds: float) -> None:
    """Let so many seconds pass in which the zygote does not look, and return when the attempt was judged after them."""
    _PAGE[_STANDSTILL] = 1
    move_clock(seconds)
    _PAGE[_STANDSTILL] = 0


def be_seen(times: int = 1) -> None:
    """Return when all that the attempt holds was looked at, and its processes so often, since this was called."""
    if times:
        _wait(_EXACT)
    for _ in range(times - 1):
        _wait(_LOOKS)


def _wait(place: int) -> None:
    begun, _ = _COUNTS.unpack_from(_PAGE, place)
    while _COUNTS.unpack_from(_PAGE, place)[1] <= begun:
        time.sleep(0.005)


def _counted(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*arguments: Any) -> Any:
        begun = _COUNTS.unpack_from(_PAGE, place)[0] + 1
        _COUNTS.pack_into(_PAGE, place, begun, begun - 1)
        found = function(*arguments)
        _COUNTS.pack_into(_PAGE, place, begun, begun)
        return found

    return counted
