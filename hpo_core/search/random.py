"""Random search: every configuration goes straight to the full resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from hpo_core.model.events import (
    ConfigurationEnqueued,
    Event,
    JobCompleted,
    JobGranted,
    SamplerExhausted,
    StudyExtended,
    TrialAbandoned,
    TrialCreated,
)
from hpo_core.model.space import ParameterType
from hpo_core.search.method import DONE, WAIT, Action, RungStatus, Sample, SearchMethod
from hpo_core.search.search_settings import (
    CONFIGS,
    WHOLE,
    Outline,
    Resource,
    SearchContext,
    SearchSettings,
    check_configs,
)


class RandomSearch(SearchSettings):
    """Every configuration is trained to ``max_resource`` at once; without it, as far as its function trains."""

    title: ClassVar[str] = "Random"

    method: Literal["random"] = "random"
    configs: int | None = Field(default=None, ge=1, description=CONFIGS)
    max_resource: Resource | None = Field(default=None, description=WHOLE)

    def create(self, context: SearchContext) -> Straight:
        return Straight(self.configs, self.max_resource or 1)

    def outline(self) -> Outline:
        return Outline(max_resource=self.max_resource or 1, endless=self.configs is None, independent=True)

    def unit_is_whole(self) -> bool:
        return self.max_resource is None

    def check_sizes(self, space: Mapping[str, ParameterType]) -> None:
        check_configs(self.configs)


class Straight(SearchMethod):
    """``configs`` configurations (None: until a stop rule), each trained to ``max_resource`` in one job.

    Args:
        limit: a finite grid or a sampler has no more; an extension beyond it ends there.
        queue_counts: whether configurations that people enqueue are some of these; else they are further ones.
    """

    def __init__(
        self, configs: int | None, max_resource: int, limit: int | None = None, *, queue_counts: bool = True
    ) -> None:
        self._queue_counts = queue_counts
        self._configs = configs
        self._max_resource = max_resource
        self.limit = limit
        self.created = 0
        self.running = 0
        self.finished = 0
        self.ruled_out: list[int] = []

    @property
    def width(self) -> int | None:
        known = [n for n in (self._configs, self.limit) if n is not None]
        return min(known) if known else None

    def next_action(self) -> Action:
        width = self.width
        if width is None or self.created < width:
            return Sample(0, 0, self._max_resource)
        return WAIT if self.running else DONE

    def grantable(self, most: int) -> int:
        return most if self.width is None else min(most, max(0, self.width - self.created))

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
        elif isinstance(event, ConfigurationEnqueued) and not self._queue_counts:
            self._configs = None if self._configs is None else self._configs + 1
            self.limit = None if self.limit is None else self.limit + 1
        elif isinstance(event, SamplerExhausted):
            self.limit = self.created

    def rungs(self) -> list[RungStatus]:
        expected = self.created if self.width is None else self.width
        left = max(0, expected - self.finished)
        return [
            RungStatus(
                0,
                0,
                self._max_resource,
                results=self.finished,
                promoted=0,
                waiting=0,
                expected=expected,
                units=left * self._max_resource,
            )
        ]

    def check(self) -> None:
        assert self.running >= 0
        assert self.width is None or self.created <= self.width
