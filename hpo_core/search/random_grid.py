"""Random and grid search: every configuration goes straight to the full resource; the sampler differs."""

from __future__ import annotations

from hpo_core.model.events import Event, JobCompleted, JobGranted, StudyExtended, TrialAbandoned, TrialCreated
from hpo_core.search.halving.promotion_chance import Contest
from hpo_core.search.method import DONE, WAIT, Action, RungStatus, Sample
from hpo_core.spec import GridSearch


class Straight:
    """``configs`` configurations (None: until a stop rule), each trained to ``max_resource`` in one job.

    Args:
        limit: a finite grid has no more; an extension beyond it ends there.
    """

    reads_curves = False

    def __init__(self, configs: int | None, max_resource: int, limit: int | None = None) -> None:
        self._configs = configs
        self._max_resource = max_resource
        self.limit = limit
        self.created = 0
        self.running = 0
        self.finished = 0
        self.ruled_out: list[int] = []

    @property
    def width(self) -> int | None:
        """Configurations in all."""
        known = [n for n in (self._configs, self.limit) if n is not None]
        return min(known) if known else None

    def next_action(self) -> Action:
        width = self.width
        if width is None or self.created < width:
            return Sample(0, 0, self._max_resource)
        return WAIT if self.running else DONE

    def verdict(self) -> Event | None:
        return None

    def contest(self, bracket: int, rung: int) -> Contest | None:
        return None

    def apply(self, event: Event) -> None:
        if isinstance(event, TrialCreated):
            self.created += 1
        elif isinstance(event, JobGranted):
            self.running += not event.retry
        elif isinstance(event, JobCompleted | TrialAbandoned):
            self.running -= 1
            self.finished += 1
            self.ruled_out.append(event.trial)
        elif isinstance(event, StudyExtended) and self._configs is not None:
            self._configs += event.configs

    def rungs(self) -> list[RungStatus]:
        expected = self.created if self.width is None else self.width
        left = max(0, expected - self.finished)
        return [RungStatus(0, 0, self._max_resource, self.finished, 0, 0, expected, left * self._max_resource)]

    def check(self) -> None:
        assert self.running >= 0
        assert self.width is None or self.created <= self.width


def create_grid(settings: GridSearch, size: int) -> Straight:
    """All ``size`` points, ``repeats`` times; a grid without drawn parameters ends there for good."""
    total = size * settings.repeats
    if settings.random:
        return Straight(settings.configs or total, settings.max_resource)
    return Straight(min(settings.configs or total, total), settings.max_resource, limit=total)
