"""Optuna's samplers that try every configuration of a finite list once: GridSampler and BruteForceSampler.

The order is Optuna's own for trials that end one after the other. It depends on the study's seed alone: what was
created already is passed over, whoever proposed it (this sampler before a restart, a warm start). After the last one
the sampler has nothing left, where Optuna's would begin to repeat itself.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Container, Iterator, Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from hpo_core.model.events import Event, TrialCreated
from hpo_core.model.rng import Stream, derive_seed
from hpo_core.model.space.search_space import suggest
from hpo_core.model.space.value_tests import optuna_choice
from hpo_core.model.trial import Params
from hpo_core.samplers.optuna_sampler import MirrorStorage
from hpo_core.samplers.sampler import SamplerContext


class _NoneWaits(MirrorStorage):
    """Optuna looks through all trials for one that waits, at each ask; here none ever does."""

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return [] if states == (TrialState.WAITING,) else super().get_all_trials(study_id, deepcopy, states)


class ExhaustiveSampler:
    """Asks an Optuna sampler for one configuration after the other, until all were created."""

    def __init__(self, name: str, arguments: Mapping[str, Any], context: SamplerContext) -> None:
        self._space = context.space.in_linear_steps()
        self._seed = context.seed
        self._created: set[str] = set()
        self._storage = _NoneWaits()
        self._asked = 0
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        grid = arguments.get("search_space") if name == "GridSampler" else None
        if grid is not None:
            grid = {one: [optuna_choice(value) for value in values] for one, values in grid.items()}
            arguments = {**arguments, "search_space": grid}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = getattr(optuna.samplers, name)(**arguments, seed=derive_seed(context.seed, "sampler", 0))
        self._study = optuna.create_study(storage=self._storage, sampler=sampler)
        self._points = None if grid is None else math.prod(map(len, grid.values()))
        self._upcoming = self._in_order()

    def propose(self, number: int, given: Params | None = None) -> Params | None:
        if given is not None:
            return self._space.draw(Stream(self._seed, "params", number), given)
        return next((values for values in self._upcoming if _key(values) not in self._created), None)

    def apply(self, event: Event) -> None:
        if isinstance(event, TrialCreated):
            self._created.add(_key(event.params))

    def _in_order(self) -> Iterator[Params]:
        """Every configuration; a grid says one twice where they differ in inactive parameters alone."""
        seen: set[str] = set()
        while self._points is None or self._asked < self._points:
            values = self._ask()
            if self._points is None and _key(values) in seen:  # brute force repeats itself once all are known
                return
            seen.add(_key(values))
            if not self._space.forbidden_by(values):
                yield values

    def _ask(self) -> Params:
        self._asked += 1
        trial = self._study.ask()
        values = suggest(self._space, trial)
        ended: FrozenTrial = self._storage.get_trial(trial._trial_id)
        ended.state = TrialState.FAIL  # has ended, so that brute force need not wait for it before it goes on
        self._storage.view[ended.number] = ended
        return values


def _key(params: Params) -> str:
    """Tells 1, 1.0 and True apart; the order of parameters does not matter."""
    return repr(sorted(params.items()))
