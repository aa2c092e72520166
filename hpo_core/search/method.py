"""SearchMethod: the questions of a study to its search method, and the closed set of answers."""

from __future__ import annotations

import functools
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import msgspec

from hpo_core.model.arithmetic import float_sum
from hpo_core.model.events import Event, JobCompleted
from hpo_core.model.trial import Params


def total_violation(values: Iterable[float]) -> float | None:
    """Sum of the constraint values above 0; None where one of them is not finite.

    >>> total_violation([-1.0, 0.5, 2.0]), total_violation([]), total_violation([1.0, math.nan])
    (2.5, 0.0, None)
    """
    known = list(values)
    if not all(map(math.isfinite, known)):
        return None
    return min(float_sum(value for value in known if value > 0), sys.float_info.max)


@functools.total_ordering
class Infeasible:
    """The loss of a result that violates constraints, as rungs compare it.

    Larger than every finite loss and smaller than infinity, which stands for no finite loss.

    >>> 5.0 < Infeasible(0.1, 1.0) < Infeasible(0.2, 0.0) < math.inf
    True
    """

    __slots__ = ("_key", "losses", "violation")
    _key: tuple[float, ...]

    def __init__(self, violation: float, losses: float | tuple[float, ...], *, negative: bool = False) -> None:
        self.violation = violation
        self.losses = losses
        plain = losses if isinstance(losses, tuple) else (losses,)
        key = (violation, *plain)
        self._key = (-1, *(-value for value in key)) if negative else (1, *key)

    def __neg__(self) -> Infeasible:
        """For heaps with the largest first: smaller than every finite loss, larger than minus infinity."""
        return Infeasible(self.violation, self.losses, negative=self._key[0] > 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Infeasible) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __lt__(self, other: Any) -> bool:
        return self._key < _key_of(other)

    def __sub__(self, other: Any) -> float:
        """Between feasible and infeasible, or between two violations, no noise of the loss decides."""
        return math.inf

    __rsub__ = __sub__

    def __repr__(self) -> str:
        return f"Infeasible({self.violation!r}, {self.losses!r})"


Rankable = float | Infeasible
"""Loss that a rung with one objective ranks; smaller is better."""


def _key_of(other: Any) -> tuple[float, ...]:
    if isinstance(other, Infeasible):
        return other._key
    return (0.0,) if math.isfinite(other) else (math.copysign(2.0, other),)


Loss = float | tuple[float, ...] | Infeasible | None
"""A result as rungs rank it: a loss, one per objective, an infeasible one, or None (not finite, or abandoned: last)."""


class Sample(msgspec.Struct, frozen=True):
    """Draw a new configuration and train it to ``target``, the level of ``rung``."""

    bracket: int
    rung: int
    target: int


class Promote(msgspec.Struct, frozen=True):
    """Train a paused trial on to ``target``, the level of ``rung``."""

    trial: int
    bracket: int
    rung: int
    target: int


class Reproduce(msgspec.Struct, frozen=True):
    """Open a trial that goes on from ``parent``'s checkpoint to ``target`` (PBT).

    ``params`` is None, and ``parent`` too, where the member begins anew: a configuration is drawn for it.
    """

    initiator: int
    opponent: int | None
    parent: int | None
    member: int
    generation: int
    target: int
    params: Params | None


class Wait(msgspec.Struct, frozen=True):
    """Nothing to grant until a running job reports."""


class Finish(msgspec.Struct, frozen=True):
    """Nothing to grant any more, whatever the running jobs report."""


Action = Sample | Promote | Reproduce | Wait | Finish
WAIT, DONE = Wait(), Finish()


class RungStatus(msgspec.Struct, frozen=True):
    """One rung as people see it."""

    bracket: int | None
    """The bracket it belongs to; None where all brackets share it. A job of bracket b and rung k stands at
    rung k of bracket b; in shared rungs, at the one with its ``level``."""
    rung: int
    """Place in its ladder, 0 at the bottom."""
    level: int
    """Units of training behind each result."""
    results: int
    """Results so far (abandoned trials count)."""
    promoted: int
    """Number of trials that left for the next rung."""
    waiting: int
    """Candidates for promotion that have not left yet."""
    expected: int
    """Results at the end of the study, if nothing fails and mispromotions aside."""
    units: int
    """Units of training still to come for this rung."""
    is_open: bool = True
    """False above a ceiling that has not been raised (PASHA)."""


class SearchMethod(ABC):
    """A running search: it is told what happened and says what to do next.

    Settings are given at construction; everything else follows from applied events alone.
    """

    reads_curves: bool = False
    """True if results should carry their learning curve (``JobCompleted.curve``)."""
    ruled_out: list[int]
    """Trials with results that are never promoted any more, not even after an extension, in the order in which
    that became so: at the top, stopped, passed over at a barrier, not finite. It only grows."""

    @abstractmethod
    def next_action(self) -> Action:
        """Decide what to do with a free slot now. Pure: asking twice gives the same answer."""

    @abstractmethod
    def apply(self, event: Event) -> None:
        """Take note of a fact. Total."""

    @abstractmethod
    def rungs(self) -> list[RungStatus]:
        """All rungs, by bracket, from the bottom up."""

    def grantable(self, most: int) -> int:
        """Number of jobs that could be granted now, before anything is reported, counted up to ``most``.

        What a study that shares a pool of slots claims there. This default claims all where one could be granted: a
        method that counts leaves slots to other studies.
        """
        return most if isinstance(self.next_action(), Sample | Promote | Reproduce) else 0

    def next_fact(self) -> Event | None:
        """A fact that follows from the results so far besides grants (a trial stopped, a ceiling raised).

        Pure; asked after every result, and again after its answer was applied, until None.
        """
        return None

    def recorded_slots(self) -> int:
        """Slots that the job of :meth:`next_action` had in the study that is trained again; 0: there is no record."""
        return 0

    def check(self) -> None:  # noqa: B027 - optional
        """Assert the method's invariants."""


def loss_of(event: JobCompleted) -> Loss:
    if event.loss is None:
        return None
    losses = event.losses or event.loss
    return Infeasible(event.violation, losses) if event.violation > 0 else losses
