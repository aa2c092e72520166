"""Syne Tune's rules as test doubles: plugged into our methods, they show which difference comes from which rule.

Only benchmarks/differential.py uses them. Written after reading Syne Tune 0.13 (``hyperband_stopping``,
``hyperband_promotion``, ``hyperband_pasha``).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict

import numpy as np

from hpo_core.model.events import CeilingRaised, JobCompleted
from hpo_core.search.pasha import Pasha, PashaSearch
from hpo_core.search.rungs import Ladder


class ArrivalRung:
    """Equal losses stand in the order of their arrival, a promoted one behind the others (their sorted list).

    Args:
        quantile: share that goes on, cut at the interpolated quantile of the losses; None: the best ``floor(n / eta)``.
    """

    def __init__(self, level: int, reduction_factor: float, quantile: float | None) -> None:
        self.level = level
        self.reduction_factor = reduction_factor
        self.quantile = quantile
        self.losses: list[float] = []
        self.trials: list[int] = []
        self._promoted: set[int] = set()

    @property
    def size(self) -> int:
        return len(self.losses)

    @property
    def promoted(self) -> int:
        return len(self._promoted)

    def add(self, trial: int, loss: float | None) -> None:
        assert loss is not None, "these tables have finite losses only"
        place = bisect_right(self.losses, loss)
        self.losses.insert(place, loss)
        self.trials.insert(place, trial)

    def promote(self, trial: int) -> None:
        place = self.trials.index(trial)
        loss = self.losses.pop(place)
        del self.trials[place]
        self._promoted.add(trial)
        self.add(trial, loss)

    def passes(self, place: int) -> bool:
        """Whether the trial at a place (from 0) is good enough to go on."""
        if self.quantile is None:
            return place < int(self.size // self.reduction_factor)
        if self.size < 2:
            return False
        at = (self.size - 1) * self.quantile + 1
        index = int(at)
        rest = at - index
        return self.losses[place] <= rest * self.losses[index] + (1 - rest) * self.losses[index - 1]

    def candidate(self) -> int | None:
        place = next((i for i, trial in enumerate(self.trials) if trial not in self._promoted), None)
        return self.trials[place] if place is not None and self.passes(place) else None

    def goes_on(self, trial: int) -> bool:
        """The stopping variant's question, right after the trial's result was added."""
        if self.quantile is None and self.size < self.reduction_factor:
            return True
        return self.size < 2 or self.passes(self.trials.index(trial))

    def promotable(self) -> int:
        return sum(self.passes(i) and trial not in self._promoted for i, trial in enumerate(self.trials))

    def ranking(self) -> list[int]:
        return list(self.trials)

    def rank(self, trial: int) -> int:
        return self.trials.index(trial) + 1

    def check(self) -> None:
        assert self.losses == sorted(self.losses)


def plug(ladders: list[Ladder], rule: str) -> None:
    """Replace the rungs of ladders by theirs, as far as ``rule`` goes.

    ``arrival``: equal losses only; ``quantile``: and the cut at the quantile ``1 / eta``; ``levels``: and the quantile
    ``r_k / r_{k+1}``, which is another where the top level is no power of eta.
    """
    for ladder in ladders:
        levels = [rung.level for rung in ladder.rungs]
        for k, (level, above) in enumerate(itertools.pairwise(levels)):
            share = {"arrival": None, "quantile": 1 / ladder.reduction_factor, "levels": level / above}[rule]
            ladder.rungs[k] = ArrivalRung(level, ladder.reduction_factor, share)
        ladder.rungs[-1] = ArrivalRung(levels[-1], ladder.reduction_factor, None)


class Borrowed(Pasha):
    """Our PASHA, told by :meth:`borrow` which tolerance Syne Tune had at that moment."""

    def __init__(self, settings: PashaSearch) -> None:
        super().__init__(settings)
        self._tolerance.add = lambda *_: None  # type: ignore[method-assign]

    def borrow(self, tolerance: float) -> None:
        self._tolerance.value = tolerance


class TheirPasha(Pasha):
    """Their PASHA: told epoch by epoch, it estimates its tolerance and looks at the rankings after each.

    Pairs are counted at the highest epoch that both reached; a pair can count twice, for the pairs of an epoch
    come out of a set of strings, in either order. Equal losses count as crossed.
    """

    def __init__(self, settings: PashaSearch) -> None:
        super().__init__(settings)
        plug([self.ladder], "levels")
        self._by_epoch: dict[str, dict[int, float]] = defaultdict(dict)
        self._at: dict[int, set[str]] = defaultdict(set)
        self.epsilon = 0.0

    def _completed(self, event: JobCompleted) -> None:
        rungs = self.ladder.rungs
        rung, name, ceiling = rungs[event.rung], str(event.trial), self.ladder.ceiling
        assert isinstance(rung, ArrivalRung)
        place = rung.trials.index(event.trial)
        loss = rung.losses.pop(place)
        del rung.trials[place]
        for epoch, value in event.curve:  # they hear of every epoch, and of the last one with the rung
            if epoch == event.resource:
                rung.add(event.trial, loss)
            self._by_epoch[name][epoch] = value
            self._at[epoch].add(name)
            if ceiling < len(rungs) - 1:
                self._estimate(ceiling)
                ceiling += not self._stable(ceiling)
        if ceiling > self.ladder.ceiling:
            self._raised = CeilingRaised(0, ceiling, rungs[ceiling].level, self.epsilon, 0, 0, ())

    def _open(self, event: CeilingRaised) -> None:
        self.ladder.ceiling = event.rung
        self._raised = None

    def _estimate(self, ceiling: int) -> None:
        highest = max(self._at)
        bottom = min(self.ladder.rungs[ceiling - 1].level, highest)
        seen: set[tuple[str, str]] = set()
        distances = []
        for epoch in range(min(highest, self.ladder.rungs[ceiling].level), bottom, -1):
            for pair in itertools.combinations(self._at[epoch], 2):
                if pair in seen:
                    continue
                seen.add(pair)
                one, other = self._by_epoch[pair[0]], self._by_epoch[pair[1]]
                now = one[epoch] > other[epoch]
                crossed = False
                for before in range(epoch - 1, 0, -1):
                    same = (one[before] > other[before]) == now
                    if same and crossed:
                        distances.append(abs(one[epoch] - other[epoch]))
                        break
                    crossed = crossed or not same
        if distances:
            self.epsilon = float(np.percentile(distances, 90))

    def _stable(self, ceiling: int) -> bool:
        above, below = self.ladder.rungs[ceiling], self.ladder.rungs[ceiling - 1]
        assert isinstance(above, ArrivalRung) and isinstance(below, ArrivalRung)
        if not above.size:
            return True
        there = set(above.trials)
        lower = [(loss, t) for loss, t in zip(below.losses, below.trials, strict=True) if t in there]
        epsilon = self.epsilon if len(lower) > 1 else 0.0
        for (loss, _), trial in zip(lower, above.trials, strict=True):
            if trial not in {t for other, t in lower if loss - epsilon <= other <= loss + epsilon}:
                return False
        return True
