"""Asynchronous successive halving, promotion variant (Li et al., MLSys 2020, Algorithm 2 and 5.1)."""

from __future__ import annotations

from hpo_core.events import Event, JobCompleted, JobGranted, StudyExtended, TrialAbandoned, TrialCreated
from hpo_core.search.base import DONE, WAIT, Action, Promote, Sample
from hpo_core.search.rungs import Ladder, default_min_resource, rung_levels
from hpo_core.spec import AshaSearch


class Asha:
    """Promote whenever a rung has a candidate, else grow the base rung, else wait.

    The base rung takes ``configs`` configurations in all; after that the study drains (5.1, "Using n as
    ASHA's stopping criterion"). A trial that was abandoned counts in the rung it was heading for, last.
    """

    def __init__(self, settings: AshaSearch) -> None:
        self.settings = settings
        eta = settings.reduction_factor
        smallest = settings.min_resource or default_min_resource(settings.max_resource, eta)
        self.ladder = Ladder(rung_levels(smallest, settings.max_resource, eta), eta)
        self.width = settings.configs
        self.created = 0
        self.running = 0

    def next_action(self) -> Action:
        found = self.ladder.promotion()
        if found is not None:
            trial, rung = found
            return Promote(trial, 0, rung, self.ladder.rungs[rung].level)
        if self.created < self.width:
            return Sample(0, 0, self.ladder.rungs[0].level)
        return WAIT if self.running else DONE

    def apply(self, event: Event) -> None:
        kind = type(event)
        if kind is JobCompleted:
            assert isinstance(event, JobCompleted)
            self.ladder.rungs[event.rung].add(event.trial, event.loss)
            self.running -= 1
        elif kind is JobGranted:
            assert isinstance(event, JobGranted)
            if not event.retry:
                self.running += 1
                if event.rung:
                    self.ladder.rungs[event.rung - 1].promote(event.trial)
        elif kind is TrialCreated:
            self.created += 1
        elif kind is TrialAbandoned:
            assert isinstance(event, TrialAbandoned)
            self.ladder.rungs[event.rung].add(event.trial, None)
            self.running -= 1
        elif kind is StudyExtended:
            assert isinstance(event, StudyExtended)
            self.width += event.configs

    def levels(self) -> list[int]:
        return [rung.level for rung in self.ladder.rungs]

    def rung_sizes(self) -> list[tuple[int, int, int]]:
        last = len(self.ladder.rungs) - 1
        return [
            (rung.size, rung.promoted, rung.promotable() if k < last else 0) for k, rung in enumerate(self.ladder.rungs)
        ]

    def check(self) -> None:
        self.ladder.check()
        assert self.created <= self.width
        assert self.running >= 0
