"""Progressive ASHA: rungs open only while rankings change (Bohdal et al., ICLR 2023)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from hpo_core.model.events import CeilingRaised, Event, JobCompleted, TrialCreated
from hpo_core.search.asha import Asha
from hpo_core.search.brackets import BracketPlan
from hpo_core.search.rungs import highest_rung, too_few
from hpo_core.search.search_settings import (
    CONFIGS,
    ETA,
    MAX,
    HalvingSettings,
    Outline,
    Resource,
    SearchContext,
    SearchProgress,
)

PERCENTILE = 90
"""Percentile of the distances between curves that cross twice: the tolerance of the soft ranking (section 4.2)."""


class PashaSearch(HalvingSettings):
    """Progressive ASHA: the maximum resource grows only while rankings change (Bohdal et al., ICLR 2023)."""

    title: ClassVar[str] = "PASHA"

    method: Literal["pasha"] = "pasha"
    configs: int | None = Field(default=None, ge=1, description=CONFIGS)
    max_resource: Resource = Field(description=MAX)
    min_resource: Resource = Field(default=1, description="Units of the shortest training, r.")
    reduction_factor: float = Field(default=3, ge=1.1, le=1e6, description=ETA)

    def create(self, context: SearchContext) -> Pasha:
        return Pasha(self)

    def outline(self) -> Outline:
        return Outline(
            max_resource=self.max_resource, reduction_factor=self.reduction_factor, endless=self.configs is None
        )

    def summary(self, progress: SearchProgress) -> str:
        return f"{self.method}, ceiling {progress.level:,} of {self.max_resource:,}"

    def check_objectives(self, objectives: int) -> None:
        if objectives > 1:
            raise ValueError("pasha ranks by one metric; use asha with several metrics, or give one metric")

    def notices(self, extra: int) -> list[str]:
        if self.configs is None:
            return []
        return too_few(self.highest_level, self.max_resource, self.configs + extra, self.reduction_factor)

    def highest_level(self, configs: int) -> int:
        levels = self.levels()
        return levels[highest_rung({0: configs}, len(levels), self.eta)]


class Pasha(Asha):
    """ASHA under a ceiling that begins at the second rung (Algorithm 1).

    Every result in the highest open rung is compared: where the configurations there are not in the order they
    had in the rung below, up to the tolerance, one more rung opens, up to the maximum resource. The base rung
    takes ``configs`` configurations in all, and the study drains below the ceiling.

    A loss that is not finite ranks last. An abandoned trial ranks last in its rung as well, but is not
    compared: nothing was measured.
    """

    reads_curves = True

    def __init__(self, settings: PashaSearch) -> None:
        self.settings = settings
        plan = BracketPlan(brackets=[0], levels=settings.levels(), reduction_factor=settings.eta)
        super().__init__(plan, settings.configs)
        self.ladder = self.ladders[0]
        self.ladder.ceiling = min(1, len(self.ladder.rungs) - 1)
        from hpo_core.search.soft_ranking import SoftRanking, Tolerance  # NumPy costs 0.1 s to import

        self._new_ranking = SoftRanking
        self._ranking = SoftRanking()
        self._tolerance = Tolerance(PERCENTILE)
        self._raised: CeilingRaised | None = None
        self._losses: list[float] = []
        """By trial: its loss at the highest rung it reached."""
        self._curves: list[tuple[tuple[int, float], ...]] = []
        """By trial: all points so far, in the order they came."""

    @property
    def tolerance(self) -> float:
        return self._tolerance.value

    @property
    def _all_open(self) -> bool:
        return self.ladder.ceiling == len(self.ladder.rungs) - 1

    def next_fact(self) -> Event | None:
        return self._raised

    def apply(self, event: Event) -> None:
        super().apply(event)
        if self._all_open:
            return
        if type(event) is TrialCreated:
            self._losses.append(math.inf)
            self._curves.append(())
        elif type(event) is JobCompleted:
            self._completed(event)
        elif type(event) is CeilingRaised:
            self._open(event)

    def _completed(self, event: JobCompleted) -> None:
        trial, below = event.trial, self._losses[event.trial]
        loss = math.inf if event.loss is None or event.infeasible else event.loss  # infeasible: all alike, and last
        if event.rung == self.ladder.ceiling:
            level = self.ladder.rungs[event.rung].level
            self._tolerance.add(self._curves[trial] + event.curve, level, loss)
            place = self._ranking.add(trial, below=below, above=loss, tolerance=self.tolerance)
            if place is not None and self._raised is None:
                self._raised = CeilingRaised(
                    0,
                    event.rung + 1,
                    self.ladder.rungs[event.rung + 1].level,
                    tolerance=self.tolerance,
                    place=place + 1,
                    trial=self._ranking.trial_at(place),
                    expected=self._ranking.exchangeable(place, self.tolerance),
                )
        self._losses[trial] = loss
        self._curves[trial] += (*event.curve, (event.resource, loss))

    def _open(self, event: CeilingRaised) -> None:
        self.ladder.ceiling = event.rung
        self._raised = None
        self._ranking = self._new_ranking()
        self._tolerance.begin()
        if self._all_open:
            self._losses.clear()
            self._curves.clear()

    def check(self) -> None:
        super().check()
        assert self._raised is None, "a ceiling that is due was not raised"
        assert all(rung.size == 0 for rung in self.ladder.rungs[self.ladder.ceiling + 1 :])
