"""What a study asks of a search method, and the closed set of its answers."""

from __future__ import annotations

from typing import Protocol

import msgspec

from hpo_core.events import Event
from hpo_core.spec import StudySpec


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


class Wait(msgspec.Struct, frozen=True):
    """Nothing to grant until a running job reports."""


class Done(msgspec.Struct, frozen=True):
    """Nothing to grant any more, whatever the running jobs report."""


Action = Sample | Promote | Wait | Done
WAIT, DONE = Wait(), Done()


class SearchMethod(Protocol):
    """Settings are given at construction; state follows from applied events alone."""

    def next_action(self) -> Action:
        """What to do with a free slot now. Pure: asking twice gives the same answer."""
        ...

    def apply(self, event: Event) -> None:
        """Take note of a fact. Total."""
        ...

    def levels(self) -> list[int]:
        """Resource of each rung of the lowest bracket, smallest first."""
        ...

    def rung_sizes(self) -> list[tuple[int, int, int]]:
        """Per rung of the lowest bracket: (results, promoted, candidates not promoted yet)."""
        ...

    def check(self) -> None:
        """Assert the method's invariants."""
        ...


def create_method(spec: StudySpec) -> SearchMethod:
    """The search method a spec names."""
    search = spec.search
    if search.method == "asha":
        from hpo_core.search.asha import Asha

        return Asha(search)
    if search.method == "random":
        from hpo_core.search.random_grid import Random

        return Random(search)
    from hpo_core.search.recorded import Recorded

    return Recorded(search)
