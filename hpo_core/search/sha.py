"""Synchronous successive halving with barriers (ASHA Algorithm 1; Falkner et al. 2018 for several brackets), and
Hyperband, which is all its brackets, the most aggressive first (Li et al., JMLR 2018).

A rung is complete when every trial that went to it reported or was abandoned; only then do its best go on.
While a bracket waits at that barrier, the next one begins on the free workers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from hpo_core.model import limits
from hpo_core.model.arithmetic import Number
from hpo_core.model.events import (
    Event,
    JobCompleted,
    JobGranted,
    SamplerExhausted,
    StudyExtended,
    TrialAbandoned,
    TrialCreated,
)
from hpo_core.model.short_text import at_most
from hpo_core.model.space import ParameterType
from hpo_core.search.brackets import hyperband_size
from hpo_core.search.method import DONE, WAIT, Action, Loss, Promote, RungStatus, Sample, SearchMethod, loss_of
from hpo_core.search.rungs import AnyRung, make_rung
from hpo_core.search.search_settings import (
    ETA,
    MAX,
    MIN,
    HalvingSettings,
    Outline,
    Resource,
    SearchContext,
    SearchProgress,
)


class SynchronousSettings(HalvingSettings):
    """Settings of a search whose rungs wait for their last result."""

    if TYPE_CHECKING:
        max_resource: int
        rounds: int

    @abstractmethod
    def plan(self) -> list[tuple[int, list[int]]]:
        """(configurations, levels) of the brackets of one round."""

    def create(self, context: SearchContext) -> Halving:
        return Halving(self.plan(), self.sampled(), self.eta, context.objectives)

    def outline(self) -> Outline:
        return Outline(
            max_resource=self.max_resource,
            reduction_factor=self.reduction_factor,
            several_brackets=len(self.plan()) * self.rounds > 1,
            barriers=True,
        )

    def summary(self, progress: SearchProgress) -> str:
        return f"{self.method}, {progress.brackets} bracket{'' if progress.brackets == 1 else 's'}"

    def sampled(self) -> int:
        return self.rounds * sum(size for size, _ in self.plan())

    def check_sizes(self, space: Mapping[str, ParameterType]) -> None:
        super().check_sizes(space)
        planned = sum(len(levels) for _, levels in self.plan())
        most = limits.PLANNED_RUNGS // planned
        at_most("search.rounds", self.rounds, most, f"rounds of {planned:,} rungs each; lower it")
        words = f"in {self.rounds:,} rounds of {len(self.plan())} brackets; raise min_resource, or lower the others"
        at_most("search: configurations", self.sampled(), limits.CONFIGS, words)


class ShaSearch(SynchronousSettings):
    """Synchronous successive halving with barriers (Jamieson & Talwalkar 2016; ASHA Algorithm 1).

    While a bracket waits at a barrier, the next round begins on the free workers (Falkner et al. 2018).
    """

    title: ClassVar[str] = "Successive halving"

    method: Literal["sha"] = "sha"
    configs: int = Field(ge=1, description="Configurations of one bracket, n in the paper.")
    max_resource: Resource = Field(description=MAX)
    min_resource: Resource | None = Field(default=None, description=MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=ETA)
    rounds: int = Field(default=1, ge=1, le=100_000, description="How many brackets of that size.")

    def plan(self) -> list[tuple[int, list[int]]]:
        return [(self.configs, self.levels())]

    def check_reach(self) -> None:
        levels = self.levels()
        needed = math.ceil(self.eta ** (len(levels) - 1))
        if self.configs < needed:
            raise ValueError(
                f"search.configs = {self.configs} is too small for {len(levels)} rungs with reduction_factor = "
                f"{self.reduction_factor:g}: floor(configs / reduction_factor^k) trials reach rung k, so none would be "
                f"trained to max_resource = {self.max_resource}. Give configs of at least {needed:,} (reduction_factor "
                f"to the power {len(levels) - 1}), or raise min_resource"
            )


class HyperbandSearch(SynchronousSettings):
    """Synchronous Hyperband, all brackets (Li et al. 2018); the asynchronous one is asha with several brackets."""

    title: ClassVar[str] = "Hyperband"

    method: Literal["hyperband"] = "hyperband"
    max_resource: Resource = Field(description=MAX)
    min_resource: Resource | None = Field(default=None, description=MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=ETA)
    rounds: int = Field(default=1, ge=1, le=100_000, description="How often the loop over all brackets runs.")

    def plan(self) -> list[tuple[int, list[int]]]:
        levels = self.levels()
        return [(hyperband_size(s, len(levels), self.eta), levels[s:]) for s in range(len(levels))]


def sizes_of(configs: int, rungs: int, reduction_factor: Number) -> list[int]:
    """Sizes of the rungs, ``floor(n * eta**-k)``, as far as they hold a trial.

    >>> sizes_of(9, 3, 3), sizes_of(4, 3, 3)
    ([9, 3, 1], [4, 1])
    """
    sizes = [int(configs // reduction_factor**k) for k in range(rungs)]
    return [size for size in sizes if size]


class Tournament:
    """One bracket between barriers.

    Args:
        configs: trials of the base rung.
        levels: resource of each rung.
    """

    def __init__(self, configs: int, levels: Sequence[int], reduction_factor: Number, objectives: int = 1) -> None:
        self.sizes = sizes_of(configs, len(levels), reduction_factor)
        self.rungs: list[AnyRung] = [make_rung(level, reduction_factor, objectives) for level in levels]
        self.finite = [0] * len(levels)
        self.created = 0
        self.chosen: list[int] = []
        """Trials of the rung below the running one that were chosen and not granted yet, the best first."""
        self.rung = 0
        """The rung that is filling."""
        self.wanted = configs
        """Results that complete it."""

    def add(self, rung: int, trial: int, loss: Loss) -> list[int]:
        """Add a result, or None for an abandoned trial; the last one of a rung opens the next.

        Returns the trials that do not go on, as known now for the first time.
        """
        self.rungs[rung].add(trial, loss)
        self.finite[rung] += loss is not None
        size = self._size(rung + 1)
        over = [trial] if loss is None or not size else []
        return over + self._next_rung()

    def _next_rung(self) -> list[int]:
        # Open the next rung where this one is complete; return the trials that do not go on.
        rung, size = self.rung, self._size(self.rung + 1)
        if self.rungs[rung].size < self.wanted or not self.wanted:
            return []
        ranking = self.rungs[rung].ranking()
        self.chosen = ranking[: min(size, self.finite[rung])]
        self.wanted = len(self.chosen)
        self.rung = rung + 1
        return ranking[len(self.chosen) : self.finite[rung]] if size else []

    def close(self) -> list[int]:
        """Begin with the trials that there are; the places in higher rungs stay, as where trials failed.

        Returns the trials that do not go on, as known now for the first time.
        """
        if self.rung or self.created == self.sizes[0]:
            return []
        self.sizes = [min(size, self.created) for size in self.sizes]
        self.wanted = self.created
        return self._next_rung()

    def withdraw(self, rung: int, trial: int) -> list[int]:
        """Take out a trial that waits at a rung or was chosen to leave it; nobody takes its place.

        Returns the trials that do not go on, as known now for the first time; this one is the first.
        """
        self.rungs[rung].withdraw(trial)
        self.finite[rung] -= 1
        if trial not in self.chosen:
            return [trial]
        self.chosen.remove(trial)
        self.wanted -= 1
        return [trial, *self._next_rung()]

    def _size(self, rung: int) -> int:
        return self.sizes[rung] if rung < len(self.sizes) else 0

    def promote(self, trial: int) -> None:
        self.rungs[self.rung - 1].promote(trial)
        self.chosen.remove(trial)


class Halving(SearchMethod):
    """Brackets one after the other, each synchronous.

    Args:
        plan: (base size, levels) of the brackets of one round; rounds follow each other.
        width: configurations in all; the last bracket gets what is left.
    """

    def __init__(
        self, plan: Sequence[tuple[int, Sequence[int]]], width: int, reduction_factor: Number, objectives: int = 1
    ) -> None:
        self.plan = plan
        self.width = width
        self.created = 0
        self.running = 0
        self.ruled_out: list[int] = []
        self.brackets: list[Tournament] = []
        self._eta = reduction_factor
        self._objectives = objectives
        self._opened = 0
        self._rung_of: dict[int, int] = {}  # by trial: of its latest result
        self._first = 0

    def _next_size(self) -> int:
        size, _ = self.plan[len(self.brackets) % len(self.plan)]
        return min(size, self.width - self._opened)

    def next_action(self) -> Action:
        for number in range(self._first, len(self.brackets)):
            bracket = self.brackets[number]
            if bracket.chosen:
                return Promote(bracket.chosen[0], number, bracket.rung, bracket.rungs[bracket.rung].level)
            if not bracket.rung and bracket.created < bracket.sizes[0]:
                return Sample(number, 0, bracket.rungs[0].level)
        if self._next_size() > 0:
            number = len(self.brackets)
            return Sample(number, 0, self.plan[number % len(self.plan)][1][0])
        return WAIT if self.running else DONE

    def grantable(self, most: int) -> int:
        count = max(0, self.width - self._opened)
        for bracket in self.brackets[self._first :]:
            if count >= most:
                break
            count += len(bracket.chosen)
            if bracket.rung == 0:
                count += max(0, bracket.sizes[0] - bracket.created)
        return min(count, most)

    def apply(self, event: Event) -> None:
        if type(event) is JobCompleted:
            stage = event.stage
            self._rung_of[event.trial] = stage.rung
            self._ended(stage.bracket, stage.rung, event.trial, loss_of(event))
        elif type(event) is TrialAbandoned:
            if self._rung_of.get(event.trial, -1) < event.rung:
                self._ended(event.bracket, event.rung, event.trial, None)
            else:
                self.ruled_out += self.brackets[event.bracket].withdraw(event.rung, event.trial)
                self._pass_finished()
        elif type(event) is JobGranted:
            if not event.retry:
                self.running += 1
                stage = event.stage
                if stage.rung:
                    self.brackets[stage.bracket].promote(event.trial)
        elif type(event) is TrialCreated:
            if event.bracket == len(self.brackets):
                size = self._next_size()
                _, levels = self.plan[len(self.brackets) % len(self.plan)]
                self.brackets.append(Tournament(size, levels, self._eta, self._objectives))
                self._opened += size
            self.brackets[event.bracket].created += 1
            self.created += 1
        elif type(event) is StudyExtended:
            self.width += event.configs
        elif type(event) is SamplerExhausted:
            self._opened = self.width = self.created
            if self.brackets:
                self.ruled_out += self.brackets[-1].close()
                self._pass_finished()

    def _ended(self, bracket: int, rung: int, trial: int, loss: Loss) -> None:
        self.running -= 1
        self.ruled_out += self.brackets[bracket].add(rung, trial, loss)
        self._pass_finished()

    def _pass_finished(self) -> None:
        while self._first < len(self.brackets) and not self.brackets[self._first].wanted:
            self._first += 1

    def rungs(self) -> list[RungStatus]:
        found: list[RungStatus] = []
        for number, bracket in enumerate(self.brackets):
            found += _status(number, bracket)
        left = self.width - self._opened
        for number in count(len(self.brackets)):
            size, levels = self.plan[number % len(self.plan)]
            if left <= 0:
                return found
            found += _status(number, Tournament(min(size, left), levels, self._eta))
            left -= size
        return found

    def check(self) -> None:
        assert self.running >= 0 and self.created <= self.width
        for bracket in self.brackets:
            for k, rung in enumerate(bracket.rungs):
                rung.check()
                allowed = bracket.sizes[k] if k < len(bracket.sizes) else 0
                assert rung.size <= allowed, f"rung {k} holds {rung.size} results, the plan has {allowed}"


def _status(number: int, bracket: Tournament) -> list[RungStatus]:
    found: list[RungStatus] = []
    expected = bracket.sizes[0]
    for k, rung in enumerate(bracket.rungs[: len(bracket.sizes)]):
        if k == bracket.rung:
            expected = bracket.wanted
        elif k:
            expected = min(expected, bracket.sizes[k])
        if k < bracket.rung:
            expected = rung.size
        waiting = len(bracket.chosen) if k == bracket.rung - 1 else 0
        step = rung.level - (bracket.rungs[k - 1].level if k else 0)
        left = max(0, expected - rung.size)
        found.append(
            RungStatus(
                number,
                k,
                rung.level,
                results=rung.size,
                promoted=rung.promoted,
                waiting=waiting,
                expected=expected,
                units=left * step,
            )
        )
    return found
