"""Evolution of a population: fitness, parents and changed parameters (PBT, Li et al. 2019, 3.4 and 3.5).

The paper allows missing entries and does not say how to compare them: here both rules look at the metrics that both
trials have. With gaps that is no order: a may be fitter than b, b than c, and c than a. A tournament compares two and
needs none; where the best of many is wanted, :func:`ranked` counts for each how many are fitter.

Dominance is the usual one of Pareto: nowhere worse and somewhere better. The paper's is stricter (better in all), and
would leave any two trials undecided that are equal in one metric, as counts of errors or bytes often are.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cmp_to_key
from typing import Literal, NamedTuple, TypeVar

import msgspec

from hpo_core.model.arithmetic import as_written
from hpo_core.model.rng import Stream
from hpo_core.model.space import SearchSpace
from hpo_core.model.trial import Params

Compared = TypeVar("Compared")
Fitness = tuple[float, ...] | None
"""Losses, smaller is fitter; NaN where a metric is missing; None: the trial diverged or was abandoned."""


def by_priority(one: Fitness, other: Fitness) -> int:
    """-1 where ``one`` is fitter, 1 where ``other`` is, 0 where nothing tells them apart.

    The first metric that both have and that differs decides.

    >>> by_priority((1.0, 9.0), (1.0, 2.0)), by_priority((math.nan, 1.0), (5.0, 2.0)), by_priority(None, (7.0,))
    (1, -1, 1)
    """
    if one is None or other is None:
        return (one is None) - (other is None)
    for a, b in zip(one, other, strict=True):
        if a < b:
            return -1
        if a > b:
            return 1
    return 0


def by_dominance(one: Fitness, other: Fitness) -> int:
    """-1 where ``one`` dominates, 1 where ``other`` does, 0 where neither does, over the metrics that both have.

    >>> by_dominance((1.0, 1.0), (1.0, 2.0)), by_dominance((1.0, 3.0), (2.0, 2.0))
    (-1, 0)
    >>> by_dominance((1.0, math.nan), (2.0, 0.0))
    -1
    """
    if one is None or other is None:
        return (one is None) - (other is None)
    shared = [(a, b) for a, b in zip(one, other, strict=True) if not (math.isnan(a) or math.isnan(b))]
    better, worse = any(a < b for a, b in shared), any(a > b for a, b in shared)
    return (worse > better) - (better > worse)


def ranked(fitness: Mapping[int, Compared], compare: Callable[[Compared, Compared], int]) -> list[int]:
    """Trials by how many of the others are fitter, the lower number first between equals.

    >>> ranked({3: (2.0,), 1: (2.0,), 2: None, 0: (5.0,)}, by_priority)
    [1, 3, 0, 2]
    """
    fitter = {trial: sum(compare(other, own) < 0 for other in fitness.values()) for trial, own in fitness.items()}
    return sorted(fitness, key=lambda trial: (fitter[trial], trial))


class TrialSession(msgspec.Struct, gc=False):
    """One trial as the evolution knows it."""

    params: Params
    parent: int | None
    member: int
    generation: int = 0
    resource: int = 0
    """Units behind it at its end, its ancestors' included."""
    fitness: Fitness = None
    violation: float = 0.0
    """Total violation of the study's constraints."""
    ended: bool = False
    initiated: bool = False


class Pairing(NamedTuple):
    """The opponent that an initiator met, and the parent that its child goes on from."""

    opponent: int | None
    parent: int | None
    """None: the member begins anew."""
    explored: bool
    """True if the child's parameters change."""


class Parents:
    """Chooses the parent of each child among the ended trials.

    - ``tournament``: the opponent is drawn from the generations that it may come from; where nothing tells the two
      apart the initiator stays. The child's parameters are explored.
    - ``truncation``: an initiator among the worst ``truncation`` of the members' latest trials, at least one, goes on
      from one of as many best ones, explored; the others go on as they are.

    A trial that diverged or was abandoned always loses. Where its opponents are all like it, the fittest trial up to
    its generation that still has its checkpoint is the parent.

    Args:
        sessions: all trials by number; this reads them, and changes none.
        seed: of the draws of opponents.
        selection: which of the two rules.
        truncation: share of the members.
        fitness: how fitness by several metrics compares.
        barrier: whether a generation ends before it has children: then these depend on it alone, not on the order in
            which its trials ended, nor on what has ended since.
    """

    def __init__(
        self,
        sessions: list[TrialSession],
        *,
        seed: int,
        selection: Literal["tournament", "truncation"],
        truncation: float,
        fitness: Literal["priority", "pareto"],
        barrier: bool = False,
    ) -> None:
        self._sessions = sessions
        self._seed = seed
        self._choose = self._tournament if selection == "tournament" else self._truncation
        self._share = as_written(truncation)
        self._pareto = fitness == "pareto"
        self._compare = by_dominance if self._pareto else by_priority
        self._barrier = barrier
        self._good: list[list[int]] = []  # per generation, ended trials with a fitness, in the order they ended
        self._latest: dict[int, int] = {}  # per member, its latest ended trial
        self._ended: list[list[int]] = []  # with a barrier: per generation, ended trials
        self._kept_from = 0  # generations below it can be no parents any more

    def add(self, trial: int) -> None:
        session = self._sessions[trial]
        while len(self._good) <= session.generation:
            self._good.append([])
            self._ended.append([])
        if self._barrier:
            insort(self._ended[session.generation], trial)
            if session.fitness is not None:
                insort(self._good[session.generation], trial)
            return
        if session.fitness is not None:
            self._good[session.generation].append(trial)
        self._latest[session.member] = trial

    def withdraw(self, trial: int) -> None:
        self._good[self._sessions[trial].generation].remove(trial)

    def drop_below(self, generation: int) -> list[int]:
        """Trials of generations below this one can be no parents any more; returns those that could so far."""
        dropped: list[int] = []
        for below in range(self._kept_from, max(self._kept_from, generation)):
            dropped += self._good[below] if below < len(self._good) else []
            self._kept_from = below + 1
        return dropped

    def has_opponents(self, reach: range, trial: int) -> bool:
        return any(number != trial for pool in self._pools(reach) for number in pool)

    def choose(self, initiator: int, child: int, reach: range) -> Pairing:
        """The parent of the child that a trial initiates.

        Args:
            reach: generations that opponents may come from.
        """
        return self._choose(initiator, child, reach)

    def _pools(self, reach: range) -> list[list[int]]:
        return self._good[reach.start : reach.stop]

    def _tournament(self, initiator: int, child: int, reach: range) -> Pairing:
        others = [number for pool in self._pools(reach) for number in pool if number != initiator]
        if not others:
            return self._alone(initiator)
        opponent = Stream(self._seed, "opponent", child).choice(others)
        wins = self._compare_trials(initiator, opponent) <= 0
        return Pairing(opponent, initiator if wins else opponent, True)

    def _truncation(self, initiator: int, child: int, reach: range) -> Pairing:
        own = self._sessions[initiator]
        members = self._ranked(self._ended[own.generation] if self._barrier else self._latest.values())
        cut = max(int(len(members) * self._share), min(1, len(members) - 1))
        best = [number for number in members[: max(1, cut)] if self._sessions[number].fitness is not None]
        place = members.index(initiator) if initiator in members else len(members)
        if own.fitness is not None and (place < len(members) - cut or not best):
            return Pairing(None, initiator, False)
        best = [number for number in best if number != initiator]
        if not best:
            return self._alone(initiator)
        opponent = Stream(self._seed, "opponent", child).choice(best)
        return Pairing(opponent, opponent, True)

    def _alone(self, initiator: int) -> Pairing:
        own = self._sessions[initiator]
        return Pairing(None, initiator if own.fitness is not None else self._fallback(own.generation), True)

    def _fallback(self, generation: int) -> int | None:
        # The fittest trial up to this generation that still has its checkpoint; None where none has a fitness.
        found = [number for pool in self._good[self._kept_from : generation + 1] for number in pool]
        return next(iter(self._ranked(found)), None)

    def _ranked(self, trials: Iterable[int]) -> list[int]:
        found = list(trials)
        unordered = any(math.isnan(loss) for number in found for loss in self._sessions[number].fitness or ())
        if unordered or self._pareto:
            return ranked({number: number for number in found}, self._compare_trials)
        return sorted(found, key=cmp_to_key(self._order))

    def _order(self, one: int, other: int) -> int:
        return self._compare_trials(one, other) or (one > other) - (one < other)

    def _compare_trials(self, one: int, other: int) -> int:
        # -1 where `one` is fitter, 1 where `other` is; among trials with a fitness the smaller violation first.
        a, b = self._sessions[one], self._sessions[other]
        if a.violation != b.violation and a.fitness is not None and b.fitness is not None:
            return -1 if a.violation < b.violation else 1
        return self._compare(a.fitness, b.fitness)


MOST_CHANGES = 100


class Explorer:
    """Draws depend on the seed and the child's number alone.

    Args:
        factors: one of which a number is multiplied by.
        static: parameters that a child has from its parent.
        resample: probability that a parameter is drawn anew.
    """

    def __init__(
        self, space: SearchSpace, seed: int, *, factors: Sequence[float], resample: float, static: Sequence[str] = ()
    ) -> None:
        self._space = space
        self._static = frozenset(static)
        self._resample = resample
        self._seed = seed
        self._factors = factors

    def explore(self, parent: Params, number: int) -> Params:
        """Parameters of child ``number``. Parameters that a changed choice makes active are drawn.

        A forbidden combination is changed anew; after :data:`MOST_CHANGES` of them a whole configuration is drawn.
        """
        for attempt in range(MOST_CHANGES):
            values = self._changed(parent, number, f"again-{attempt}/" if attempt else "")
            if not self._space.has_forbidden or not self._space.forbidden_by(values):
                return values
        return self._space.draw(Stream(self._seed, "explore", number))

    def _changed(self, parent: Params, number: int, purpose: str) -> Params:
        values: Params = {}
        for name in self._space.order:
            if not self._space.is_active(name, values):
                continue
            parameter = self._space.parameters[name]
            stream = Stream(self._seed, f"explore/{purpose}{name}", number)
            if name not in parent:
                values[name] = parameter.draw(stream)
            elif name in self._static:
                values[name] = parent[name]
            elif stream.uniform() < self._resample:
                values[name] = parameter.draw(stream)
            else:
                values[name] = parameter.changed(parent[name], stream, self._factors)
        return values
