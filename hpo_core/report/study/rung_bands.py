"""Where each rung is drawn: the ladders of the brackets, one above the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpo_core.state import TrialRecord
from hpo_core.study import Study
from hpo_core.views.rungs import (
    FEW,
    BracketView,
    RungNames,
    RungView,
    bracket_views,
    by_shape,
    entry_levels,
    is_unlimited,
)

Kind = Literal["top", "ceiling", "closed", "middle"]


@dataclass(frozen=True, slots=True)
class Band:
    """One rung as drawn: of one bracket, of several of one shape, or shared by all."""

    ladder: int
    rung: RungView
    kind: Kind
    """``top``: nothing lies above; ``ceiling``: what lies above is closed; ``closed``: so is this one."""

    @property
    def label(self) -> str:
        return f"Rung {self.rung.rung} ({self.rung.level:,})"


class Bands:
    """All rungs of a study from the bottom up, ladder after ladder.

    A bracket is a ladder. Where there are many, those that begin at the same level share one: rounds of synchronous
    halving or Hyperband repeat each other.
    """

    def __init__(self, study: Study) -> None:
        views = bracket_views(study, details=True)
        self.ladders: list[BracketView] = views if len(views) <= FEW else by_shape(views)
        self.names = RungNames(study.spec)
        self.entry_levels = entry_levels(study.spec)
        self.unlimited = is_unlimited(study.spec)
        self.all: list[Band] = []
        self._first: list[int] = []
        self._ladder_of: dict[int | None, int] = {}
        top = getattr(study.spec.search, "max_resource", None)
        for i, ladder in enumerate(self.ladders):
            self._first.append(len(self.all))
            for number in ladder.numbers or (None,):
                self._ladder_of[number] = i
            for k, rung in enumerate(ladder.rungs):
                self.all.append(Band(i, rung, _kind(ladder, k, top is None)))

    @property
    def several(self) -> bool:
        """Whether there are several ladders to tell apart."""
        return len(self.ladders) > 1

    def of(self, bracket: int, rung: int) -> int:
        """Index of the band where a job of a bracket and rung stands."""
        own, place = self.names.place(bracket, rung)
        return self._first[self._ladder_of[own]] + place

    def base(self, bracket: int) -> int:
        """Index of the lowest band of a bracket's ladder."""
        return self._first[self._ladder_of[self.names.place(bracket, 0)[0]]]

    def at(self, trial: TrialRecord, resource: int) -> int:
        """Index of the band that a trial stands in with so much training: the highest not above it."""
        base = self.base(trial.bracket)
        ladder = self.ladders[self.all[base].ladder]
        below = [k for k, rung in enumerate(ladder.rungs) if rung.level <= resource]
        return base + (below[-1] if below else 0)

    def heading(self, ladder: int) -> str:
        """``Bracket 1: trials start at 4``."""
        view = self.ladders[ladder]
        word = "Brackets" if len(view.numbers) > 1 else "Bracket"
        begun = ", not begun yet" if view.state == "to come" else ""
        return f"{word} {view.name}: trials start at {view.start:,}{begun}"


def _kind(ladder: BracketView, k: int, endless: bool) -> Kind:
    if not ladder.rungs[k].is_open:
        return "closed"
    if k == len(ladder.rungs) - 1:
        return "middle" if endless else "top"
    return "middle" if ladder.rungs[k + 1].is_open else "ceiling"


def stacked(bands: Bands, *, below: float, between: float) -> list[float]:
    """Heights of all bands, one unit apart, the first ladder on top.

    Args:
        below: room under each ladder's lowest band.
        between: room between two ladders, for the heading of the lower one.
    """
    heights: dict[int, list[float]] = {}
    at = below
    for i in reversed(range(len(bands.ladders))):
        count = len(bands.ladders[i].rungs)
        heights[i] = [at + k for k in range(count)]
        at += count + between + below
    return [height for i in range(len(bands.ladders)) for height in heights[i]]
