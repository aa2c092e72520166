"""Random search: every configuration goes straight to the full resource."""

from __future__ import annotations

from hpo_core.events import Event, JobCompleted, JobGranted, StudyExtended, TrialAbandoned, TrialCreated
from hpo_core.search.base import DONE, WAIT, Action, Sample
from hpo_core.spec import RandomSearch


class Random:
    """``configs`` configurations, each trained to ``max_resource`` in one job."""

    def __init__(self, settings: RandomSearch) -> None:
        self.settings = settings
        self.width = settings.configs
        self.created = 0
        self.running = 0
        self.finished = 0

    def next_action(self) -> Action:
        if self.created < self.width:
            return Sample(0, 0, self.settings.max_resource)
        return WAIT if self.running else DONE

    def apply(self, event: Event) -> None:
        if isinstance(event, TrialCreated):
            self.created += 1
        elif isinstance(event, JobGranted):
            self.running += not event.retry
        elif isinstance(event, JobCompleted | TrialAbandoned):
            self.running -= 1
            self.finished += 1
        elif isinstance(event, StudyExtended):
            self.width += event.configs

    def levels(self) -> list[int]:
        return [self.settings.max_resource]

    def rung_sizes(self) -> list[tuple[int, int, int]]:
        return [(self.finished, 0, 0)]

    def check(self) -> None:
        assert self.created <= self.width and self.running >= 0
