"""Population based training as initiator-based evolution (Li et al. 2019, 3.4 to 3.8; truncation: ASHA A.3).

A trial is one short training session of a member of the population. Each ended trial initiates one reproduction
and no more: it meets an opponent, the fitter one is the parent, and the child goes on from the parent's
checkpoint with changed parameters, in the initiator's place. Who initiates, ``reproduction`` says:

- ``generation`` (Algorithm 1 and 3.8): while fewer than ``population`` trials have ended, free workers sample. Then the
  oldest ended trial that has not initiated does, provided that its generation holds ``population`` trials, running ones
  counted. So everybody meets opponents, stragglers leave no generation half full behind them, and no worker waits: with
  W workers the first generation has up to W - 1 members more, and as many trials can be late without holding anything
  up. (Workers that join later can wait for stragglers.) The sessions in all stay ``population * generations``.
- ``eager``: ``population`` members are sampled, and whoever ended initiates, unless there is nobody to meet yet and
  somebody is on the way.
- ``barrier``: a generation has exactly ``population`` trials and ends before the next one begins. Its children depend
  on it, and on those before it, alone: they are the same on any number of workers.

A population larger than the cluster is worked off oldest first (budget mode); on one worker that is a synchronous
evolution.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hpo_core.model import limits
from hpo_core.model.events import (
    Event,
    JobCompleted,
    JobGranted,
    Reproduced,
    StudyExtended,
    TrialAbandoned,
    TrialCreated,
    TrialStopped,
)
from hpo_core.model.short_text import at_most, meant_or_known, shown
from hpo_core.model.space import ParameterType, SearchSpace
from hpo_core.search.evolution import Explorer, Parents, TrialSession
from hpo_core.search.method import DONE, WAIT, Action, Reproduce, RungStatus, Sample, SearchMethod
from hpo_core.search.search_settings import Outline, Resource, SearchContext, SearchProgress, SearchSettings

OPPONENTS_FROM = 2
"""Generations, up to the initiator's own, that opponents come from; truncation, too, goes on from these alone."""


class PbtSearch(SearchSettings):
    """Population based training: short sessions that go on from the fitter one's weights (Li et al. 2019)."""

    title: ClassVar[str] = "Population"

    method: Literal["pbt"] = "pbt"
    population: int = Field(
        default=20, ge=2, le=100_000, description="Number of members. With fewer workers they take turns, oldest first."
    )
    generations: int = Field(default=30, ge=1, le=1_000_000, description="Rounds of training of each member.")
    steps_per_generation: Resource = Field(default=1, description="Units of training of one session.")
    selection: Literal["tournament", "truncation"] = Field(
        default="tournament",
        description="tournament: the fitter of two is the parent; truncation: the worst go on from one of the best.",
    )
    reproduction: Literal["eager", "generation", "barrier"] = Field(
        default="eager",
        description="When a member whose session ended meets an opponent. eager: as soon as there is one. generation "
        "(the paper): once its generation is full; free workers fill the first one meanwhile. barrier: once its whole "
        "generation has ended.",
    )
    truncation: float = Field(default=0.2, gt=0, le=0.5, description="Share of the worst that is replaced.")
    fitness: Literal["priority", "pareto"] = Field(
        default="priority",
        description="With several metrics: the first that differs decides, or dominance (nowhere worse, once better).",
    )
    perturb: list[Annotated[float, Field(gt=0, lt=1e6)]] = Field(
        default=[0.8, 1.2], min_length=1, description="Factors of numbers; ordered choices move to a neighbour."
    )
    resample: float | None = Field(
        default=None, ge=0, le=1, description="Probability that a parameter is drawn anew; default 0, truncation 0.25."
    )
    static: list[str] = Field(default_factory=list, description="Parameters that are never mutated, once drawn.")
    max_gap: int | None = Field(
        default=None, ge=1, description="How many generations a member may be ahead of the slowest running one."
    )
    stragglers: int | None = Field(
        default=None, ge=1, description="Running trials this many generations behind the newest are stopped."
    )

    @property
    def max_resource(self) -> int:
        return self.generations * self.steps_per_generation

    def explorer(self, space: SearchSpace, seed: int) -> Explorer:
        usual = 0.25 if self.selection == "truncation" else 0.0  # ASHA, A.3
        resample = usual if self.resample is None else self.resample
        return Explorer(space, seed, factors=self.perturb, resample=resample, static=self.static)

    def check_space(self, space: SearchSpace, seed: int) -> None:
        if unknown := [name for name in self.static if name not in space.parameters]:
            meant = meant_or_known(unknown[0], space.parameters, "it has")
            raise ValueError(f"search.static: {shown(unknown[0])} is no parameter of the space; {meant}")

    def create(self, context: SearchContext) -> Pbt:
        return Pbt(self, context.space, context.seed)

    def outline(self) -> Outline:
        return Outline(max_resource=self.max_resource, population=self.population, members=True)

    def accepts_any_metric(self) -> bool:
        return True

    def summary(self, progress: SearchProgress) -> str:
        return (
            f"{self.method} ({self.selection}), population {self.population:,}, generation {progress.generation:,} of "
            f"{self.generations:,}"
        )

    def sampled(self) -> int:
        return self.population

    def check_sizes(self, space: Mapping[str, ParameterType]) -> None:
        at_most("search.generations", self.generations, limits.PLANNED_RUNGS, "generations; lower it")
        trials = self.population * self.generations
        at_most("population * generations", trials, limits.CONFIGS, "trials; lower one of them")
        at_most("generations * steps_per_generation", self.max_resource, limits.RESOURCE, "units; lower one of them")


class Pbt(SearchMethod):
    """A population, asked which member trains next and from whose weights.

    ``selection`` says how the parent is found (:class:`~hpo_core.search.evolution.Parents`). Opponents come
    from the last two generations up to the initiator's own. A trial that diverged or was abandoned initiates, too;
    where no trial can be its child's parent, the member begins anew.

    Checkpoints go (``ruled_out``) once every trial up to some generation has initiated: those of generations that no
    later initiator may meet.
    """

    def __init__(self, settings: PbtSearch, space: SearchSpace, seed: int) -> None:
        self.settings = settings
        self._explorer = settings.explorer(space, seed)
        self.sessions: list[TrialSession] = []
        self._parents = Parents(
            self.sessions,
            seed=seed,
            selection=settings.selection,
            truncation=settings.truncation,
            fitness=settings.fitness,
            barrier=settings.reproduction == "barrier",
        )
        self._by_generation = settings.reproduction == "generation"
        self.total = settings.population * settings.generations
        self.running: set[int] = set()
        self._waiting: dict[int, list[int]] = {}  # per generation, ended trials that have not initiated: a heap
        self._created: Counter[int] = Counter()  # trials per generation
        self._ended: Counter[int] = Counter()  # of them, how many ended
        self._pending: Counter[int] = Counter()  # of them, how many have not initiated
        self._newest = -1  # generation
        self._oldest = 0  # generation of the oldest trial that has not initiated
        self.ruled_out: list[int] = []

    def next_action(self) -> Action:
        created, population = len(self.sessions), self.settings.population
        filling = self._ended[0] < population if self._by_generation else created < population
        if filling or created >= self.total:
            return Sample(0, 0, self.settings.steps_per_generation) if created < self.total else self._idle()
        initiator = self._oldest_to_initiate()
        return self._idle() if initiator is None else self._reproduction(initiator, created)

    def grantable(self, most: int) -> int:
        left, population = self.total - len(self.sessions), self.settings.population
        if self._by_generation:
            new = left if self._ended[0] < population else 0
        else:
            new = min(left, max(0, population - len(self.sessions)))
        if new == left or new >= most or (self._by_generation and new):
            return min(new, most)
        children, born = 0, 0
        for generation, heap in sorted(self._waiting.items()):
            if self._by_generation:  # children fill a generation, whose trials then have their turn
                has_turn = self._created[generation] + born >= population
                born = len(heap) if has_turn else 0
            else:
                ready = sum(self._has_turn(generation, trial) and self._may_initiate(trial) for trial in heap)
                born = min(ready, self._size(generation + 1) - self._created[generation + 1])
            children += born
        return min(most, left, new + children)

    def _oldest_to_initiate(self) -> int | None:
        found = [heap[0] for generation, heap in self._waiting.items() if heap and self._has_turn(generation, heap[0])]
        oldest = min(found, default=None)
        return oldest if oldest is not None and self._may_initiate(oldest) else None

    def _has_turn(self, generation: int, trial: int) -> bool:
        if self._by_generation:
            return self._created[generation] >= self.settings.population
        if self._created[generation + 1] >= self._size(generation + 1):
            return False
        reach = self._reach(generation)
        if self._parents.has_opponents(reach, trial):
            return True
        return not any(self.sessions[number].generation in reach for number in self.running)

    def _reach(self, generation: int) -> range:
        return range(max(0, generation + 1 - OPPONENTS_FROM), generation + 1)

    def _idle(self) -> Action:
        return WAIT if self.running else DONE

    def _may_initiate(self, trial: int) -> bool:
        generation = self.sessions[trial].generation
        if self.settings.reproduction == "barrier" and self._ended[generation] < self._size(generation):
            return False
        gap = self.settings.max_gap
        if gap is None or not self.running:
            return True
        oldest = min(self.sessions[number].generation for number in self.running)
        return generation + 1 - oldest <= gap

    def _size(self, generation: int) -> int:
        # Trials of a generation in the end, where each has at most `population`; the last one may be cut.
        population = self.settings.population
        return max(0, min(population, self.total - generation * population))

    def _sizes(self) -> list[int]:
        if not self._by_generation:
            return [self._size(generation) for generation in range(-(-self.total // self.settings.population))]
        found: list[int] = []
        left = self.total - len(self.sessions)
        while left or len(found) <= self._newest:
            created = self._created[len(found)]
            wanted = found[-1] if found else max(created, min(self.settings.population, self.total))
            more = min(left, max(0, wanted - created))
            found.append(created + more)
            left -= more
        return found

    def _reproduction(self, initiator: int, child: int) -> Action:
        own = self.sessions[initiator]
        opponent, parent, explored = self._parents.choose(initiator, child, self._reach(own.generation))
        params, target = None, self.settings.steps_per_generation
        if parent is not None:
            chosen = self.sessions[parent]
            params = self._explorer.explore(chosen.params, child) if explored else chosen.params
            target += chosen.resource
        generation = own.generation + 1
        return Reproduce(
            initiator, opponent, parent, member=own.member, generation=generation, target=target, params=params
        )

    def early_stopping(self) -> list[int]:
        behind = self.settings.stragglers
        if behind is None or not self.sessions:
            return []
        newest = self.sessions[-1].generation
        return sorted(number for number in self.running if newest - self.sessions[number].generation >= behind)

    def next_fact(self) -> Event | None:
        stop = self.early_stopping()
        if not stop:
            return None
        return TrialStopped(stop[0], 0, self.sessions[stop[0]].generation, 0, 0)

    def apply(self, event: Event) -> None:
        if type(event) is JobCompleted:
            session = self.sessions[event.trial]
            session.resource = event.resource
            if event.losses:
                session.fitness = event.losses
            elif event.loss is not None:
                session.fitness = (event.loss,)
            session.violation = event.violation
            self._end(event.trial)
        elif type(event) is TrialAbandoned or type(event) is TrialStopped:
            if not self.sessions[event.trial].ended:
                self._end(event.trial)
            elif type(event) is TrialAbandoned:
                self._withdraw(event.trial)
        elif type(event) is JobGranted:
            self.running.add(event.trial)
        elif type(event) is TrialCreated:
            self.sessions.append(TrialSession(event.params, event.parent, event.trial))
            self._created[0] += 1
            self._pending[0] += 1
            self._newest = max(self._newest, 0)
        elif type(event) is Reproduced:
            child = self.sessions[event.child]
            child.member, child.generation = event.member, event.generation
            self._newest = max(self._newest, event.generation)
            for counts in (self._created, self._pending):
                counts[0] -= 1
                counts[event.generation] += 1
            initiator = self.sessions[event.initiator]
            initiator.initiated = True
            self._pending[initiator.generation] -= 1
            heap = self._waiting[initiator.generation]
            assert heapq.heappop(heap) == event.initiator
            if not heap:
                del self._waiting[initiator.generation]
            while not self._pending[self._oldest]:
                self._oldest += 1
            self.ruled_out += self._parents.drop_below(self._oldest + 1 - OPPONENTS_FROM)
        elif type(event) is StudyExtended:
            self.total += event.configs

    def _withdraw(self, trial: int) -> None:
        # Abandon an ended trial: it is nobody's parent any more, and loses where it has yet to initiate.
        session = self.sessions[trial]
        if session.fitness is not None:
            self._parents.withdraw(trial)
            session.fitness = None
        self.ruled_out.append(trial)

    def _end(self, trial: int) -> None:
        session = self.sessions[trial]
        session.ended = True
        self.running.discard(trial)
        heapq.heappush(self._waiting.setdefault(session.generation, []), trial)
        self._ended[session.generation] += 1
        self._parents.add(trial)

    def rungs(self) -> list[RungStatus]:
        steps = self.settings.steps_per_generation
        initiated = Counter(session.generation for session in self.sessions if session.initiated)
        found, sizes = [], self._sizes()
        for generation, size in enumerate(sizes):
            ended = self._ended[generation]
            reproduced = initiated[generation]
            ready = max(0, min(ended, (sizes[generation + 1] if generation + 1 < len(sizes) else 0)) - reproduced)
            left = max(0, size - ended) * steps
            found.append(
                RungStatus(
                    0,
                    generation,
                    (generation + 1) * steps,
                    results=ended,
                    promoted=reproduced,
                    waiting=ready,
                    expected=size,
                    units=left,
                )
            )
        return found

    def check(self) -> None:
        assert len(self.sessions) <= self.total
        children = [s for s in self.sessions if s.generation]
        assert sum(s.initiated for s in self.sessions) == len(children), "a trial initiated twice, or not at all"
        waiting = sorted(number for heap in self._waiting.values() for number in heap)
        assert waiting == [i for i, s in enumerate(self.sessions) if s.ended and not s.initiated]
        counts, sizes = Counter(session.generation for session in self.sessions), self._sizes()
        assert sum(sizes) == self.total
        for generation, count in counts.items():
            assert count == self._created[generation] <= sizes[generation]
        for session in self.sessions:
            if session.parent is not None:
                parent = self.sessions[session.parent]
                assert parent.ended
                ahead = self.settings.selection == "truncation"
                assert parent.generation < session.generation or ahead, "the parent is of a later generation"
