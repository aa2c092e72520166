"""Asynchronous successive halving, stopping variant.

At a rung a trial goes on at once, or it is stopped for good.

Li et al. 2018 (arXiv:1810.05934v1) and Syne Tune's documentation: a trial goes on where it is among the best
``floor(n / eta)`` of the ``n`` results of its rung so far, itself counted, or ``n < eta``.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter, deque

from hpo_core.model.events import Event, JobCompleted, JobGranted, TrialAbandoned, TrialStopped
from hpo_core.model.judged_results import Rankable
from hpo_core.search.brackets import BracketPlan, Brackets
from hpo_core.search.method import DONE, WAIT, Action, Loss, Promote, RungStatus, SearchMethod, loss_of
from hpo_core.search.rungs import AnyRung


class AshaStopping(SearchMethod):
    """The stopping variant: each result is judged at once.

    Trials that pass get the next free slot, before new configurations.

    A loss that is not finite stops its trial always.
    """

    def __init__(self, plan: BracketPlan, configs: int | None, *, seed: int = 0, objectives: int = 1) -> None:
        self.brackets = Brackets(plan, configs, seed=seed, objectives=objectives)
        self.ruled_out = self.brackets.ruled_out
        self._eta = plan.reduction_factor
        self._several = objectives > 1
        self._ranked: dict[AnyRung, list[tuple[Rankable, int]]] = {}
        self._passed: deque[Promote] = deque()
        self._stopped: deque[TrialStopped] = deque()

    def next_action(self) -> Action:
        if self._passed:
            return self._passed[0]
        return self.brackets.sample() or (WAIT if self.brackets.running else DONE)

    def grantable(self, most: int) -> int:
        return min(most, len(self._passed) + self.brackets.samples_left(most))

    def next_fact(self) -> Event | None:
        return self._stopped[0] if self._stopped else None

    def apply(self, event: Event) -> None:
        if type(event) is JobCompleted:
            self._judge(event)
        elif type(event) is TrialAbandoned and self.brackets.is_at(event):
            self._withdraw(event)
        elif type(event) is TrialAbandoned:
            self._rank(self.brackets.rung(event.bracket, event.rung), event.trial, None)
        elif type(event) is JobGranted:
            if not event.retry and self._passed and self._passed[0].trial == event.trial:
                self._passed.popleft()
        elif type(event) is TrialStopped:
            self._stopped.popleft()
            self.ruled_out.append(event.trial)
        self.brackets.apply(event)

    def _judge(self, event: JobCompleted) -> None:
        ladder, k = self.brackets.place(event.stage.bracket, event.stage.rung)
        rung = ladder.rung(k)
        loss = loss_of(event)
        rank = self._rank(rung, event.trial, loss)
        if not ladder.endless and k == len(ladder.rungs) - 1:
            self.ruled_out.append(event.trial)
            return
        eta = ladder.reduction_factor
        if loss is not None and (rung.size < eta or rank <= int(rung.size // eta)):
            self._passed.append(self.brackets.promote(ladder, event.trial, k + 1))
        else:
            self._stopped.append(TrialStopped(event.trial, event.bracket, event.rung, rank, rung.size))

    def _rank(self, rung: AnyRung, trial: int, loss: Loss) -> int:
        """Add a result to its rung and return its place there, from 1.

        Between equal results the lower trial number comes first.
        """
        rung.add(trial, loss)
        if self._several:
            return rung.rank(trial)
        assert not isinstance(loss, tuple)
        key: tuple[Rankable, int] = (math.inf if loss is None else loss, trial)
        ranked = self._ranked.setdefault(rung, [])
        insort(ranked, key)
        return bisect_right(ranked, key)

    def _withdraw(self, event: TrialAbandoned) -> None:
        """Drop an abandoned trial that had passed; the brackets take it out of the rung."""
        self._passed = deque(job for job in self._passed if job.trial != event.trial)
        rung = self.brackets.rung(event.bracket, event.rung)
        if (ranked := self._ranked.get(rung)) is not None:
            ranked[:] = [key for key in ranked if key[1] != event.trial]
            insort(ranked, (math.inf, event.trial))

    def rungs(self) -> list[RungStatus]:
        going = Counter(self.brackets.rung(job.bracket, job.rung - 1) for job in self._passed)
        return self.brackets.rungs(lambda rung: going[rung], self._leaving)

    def _leaving(self, results: int) -> int:
        """Estimate how many of ``results`` results go on: the first ones always, then one in eta."""
        eta = self._eta
        free = min(results, math.ceil(eta) - 1)
        return int(free + (results - free) / eta)

    def check(self) -> None:
        assert self.brackets.running >= 0
        assert not {p.trial for p in self._passed} & {s.trial for s in self._stopped}
