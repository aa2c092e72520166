"""Optuna's samplers that try every configuration of a finite list once: GridSampler and BruteForceSampler.

The order is Optuna's own for trials that end one after the other. It depends on the study's seed alone: what was
created already is passed over, whoever proposed it (this sampler before a restart, a warm start). After the last one
the sampler has nothing left, where Optuna's would begin to repeat itself.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Container, Iterator, Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from hpo_core.model import limits
from hpo_core.model.events import Event, TrialCreated
from hpo_core.model.rng import Stream, derive_seed
from hpo_core.model.short_text import meant_or_known, some
from hpo_core.model.space import NormalParameter, NumberParameter, SearchSpace
from hpo_core.model.space.choices import ListedParameter
from hpo_core.model.space.optuna_view import suggest
from hpo_core.model.space.value_tests import optuna_choice, said
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


EXHAUSTIVE = frozenset({"GridSampler", "BruteForceSampler"})
"""Optuna's samplers that try every configuration of a finite list once."""
_ONE_TOO_MANY = limits.LISTED_CONFIGURATIONS + 1


def check_listed(name: str, arguments: Mapping[str, Any], space: SearchSpace) -> None:
    """Refuse a list with what the space does not have, one without end, and one that is too long.

    Raises:
        ValueError: place, value, rule and cure.
    """
    if name not in EXHAUSTIVE:
        return
    for one, parameter in space.parameters.items():
        if space.is_dependent(one) or isinstance(parameter, NormalParameter):
            what = "has a range that depends on another value" if space.is_dependent(one) else f"is {parameter.type}"
            raise ValueError(
                f"sampler {name}: {one} {what}, and has no list of values; use random or TPESampler, or give {one} "
                "numbers as ends"
            )
    if name == "GridSampler":
        _check_grid(arguments["search_space"], space)
    else:
        _check_count(space)


def _check_grid(grid: Any, space: SearchSpace) -> None:
    where = "sampler.search_space"
    if not isinstance(grid, Mapping):
        raise ValueError(f"{where} is {said(grid)}; write a list of values for each parameter")
    if missing := [name for name in space.parameters if name not in grid]:
        raise ValueError(f"{where} says nothing of {some(missing)}; give a list of values for each parameter")
    for name, values in grid.items():
        if name not in space.parameters:
            hint = meant_or_known(name, space.parameters, "it has")
            raise ValueError(f"{where}: {said(name)} is no parameter of the space; {hint}")
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"{where}.{name} = {said(values)} is no list of values; name one or more")
        for value in values:
            try:
                space.parameters[name].taken(value)
            except ValueError as error:
                raise ValueError(f"{where}.{name}: {said(value)} {error}") from None


def _check_count(space: SearchSpace) -> None:
    """Count configurations, a parameter at a time, until there are too many; forbidden ones too, they cost the same.

    Those that differ only in what no condition asks about are counted together.
    """
    asked = {other for name in space.order for other in space.above(name)}
    found: list[tuple[Params, int]] = [({}, 1)]
    for name in space.order:
        values = _values(name, space)
        longer: list[tuple[Params, int]] = []
        for params, count in found:
            if not space.is_active(name, params):
                longer.append((params, count))
            elif name in asked:
                longer += [(params | {name: value}, count) for value in values]
            else:
                longer.append((params, count * len(values)))
        if sum(count for _, count in longer) > limits.LISTED_CONFIGURATIONS:
            raise ValueError(
                f"sampler BruteForceSampler would list more than {limits.LISTED_CONFIGURATIONS:,} configurations; "
                "narrow the space or raise a step, or use search: {method: grid} or random"
            )
        found = longer


def _values(name: str, space: SearchSpace) -> list[Any]:
    parameter = space.parameters[name]
    if isinstance(parameter, ListedParameter):
        return list(parameter.listed())[:_ONE_TOO_MANY]
    assert isinstance(parameter, NumberParameter)
    step = parameter.step or 0
    if not step and parameter.low < parameter.high:
        raise ValueError(
            f"sampler BruteForceSampler: {name} is {parameter.type} without a step, and has no end of values; give it "
            "a step, or use random or TPESampler"
        )
    upto = (parameter.high - parameter.low) / step + 1e-9 if step else 0
    return [parameter.low + at * step for at in itertools.takewhile(lambda k: k <= upto, range(_ONE_TOO_MANY))]
