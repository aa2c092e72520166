"""The promotions of a study: which trial went on to a higher rung, and from which rank.

A grant does not record the rank, and a rerun's method follows recorded grants without ranking anything. So ranks are
found here, once for all who show them: O(log n) comparisons a result with one objective.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import Any

import msgspec

from hpo_core.model.events import Entry, JobCompleted, JobGranted, TrialAbandoned
from hpo_core.model.stage import FURTHER
from hpo_core.search.method import Loss, loss_of
from hpo_core.search.pareto_rungs import ParetoRung
from hpo_core.study import Study
from hpo_core.views.rungs import Place, RungNames


class Promotion(msgspec.Struct, frozen=True):
    """A trial went on to a higher rung."""

    seq: int
    time: float
    trial: int
    bracket: int
    rung: int
    """Counted within the bracket, also where brackets share their rungs."""
    target: int
    loss: float | None
    """At the rung below."""
    rank: int
    """From 1, among the results of the rung below at that moment: by loss, or as that rung ranks several objectives."""
    among: int


class Promotions:
    """The promotions of one study, in the order of its journal. Give it every entry after the study replayed it."""

    def __init__(self, study: Study) -> None:
        self.all: list[Promotion] = []
        self._study = study
        self._names = RungNames(study.spec)
        self._several = len(study.spec.objectives) > 1
        self._by_loss: dict[Place, list[tuple[Any, int]]] = {}
        """Results by rung, abandoned trials among them; with one objective."""
        self._fronts: dict[Place, ParetoRung] = {}
        """The same with several."""

    def add(self, entry: Entry) -> None:
        """Take in an entry that the study has just replayed."""
        for event in entry.events:
            kind = type(event)
            if kind is JobCompleted:
                assert isinstance(event, JobCompleted)
                if event.rung != FURTHER:
                    complete = all(loss == loss for loss in event.losses)  # a population's fitness may have gaps
                    self._ranked(event, loss_of(event) if complete else None)
            elif kind is TrialAbandoned:
                assert isinstance(event, TrialAbandoned)
                if not self._study.state.trials[event.trial].is_at(event):
                    self._ranked(event, None)
            elif kind is JobGranted:
                assert isinstance(event, JobGranted)
                self._granted(event, entry)

    def _ranked(self, event: JobCompleted | TrialAbandoned, loss: Loss) -> None:
        place = self._names.place(event.bracket, event.rung)
        if self._several:
            self._fronts.setdefault(place, ParetoRung(1, 1.0)).add(event.trial, loss)  # type: ignore[arg-type]
        else:
            insort(self._by_loss.setdefault(place, []), _key(loss, event.trial))

    def _granted(self, event: JobGranted, entry: Entry) -> None:
        results = self._study.state.trials[event.trial].results
        if event.retry or not results or event.rung == FURTHER:
            return
        below = results[-1]
        place = self._names.place(below.bracket, below.rung)
        if self._several:
            rung = self._fronts[place]
            rank, among = rung.rank(below.trial), rung.size
            rung.promote(below.trial)
        else:
            ranked = self._by_loss[place]
            rank, among = bisect_left(ranked, _key(loss_of(below), below.trial)) + 1, len(ranked)
        self.all.append(
            Promotion(
                seq=entry.seq,
                time=entry.time,
                trial=event.trial,
                bracket=event.bracket,
                rung=event.rung,
                target=event.target,
                loss=below.loss,
                rank=rank,
                among=among,
            )
        )


def _key(loss: Loss, trial: int) -> tuple[Any, int]:
    return (math.inf if loss is None else loss, trial)
