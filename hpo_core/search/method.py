"""SearchMethod: the questions of a study to its search method, and the closed set of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from hpo_core.model.events import Event, JobCompleted
from hpo_core.model.judged_results import Infeasible
from hpo_core.model.trial import Params

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
    """How many left for the next rung."""
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
    """Whether results should carry their learning curve (``JobCompleted.curve``)."""
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
