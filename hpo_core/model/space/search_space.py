"""The parameters of a study, their order, and the conditions between them; the space as Optuna's samplers see it.

Samplers see each parameter on a scale of its own (``ParameterType.scale``), since Optuna takes False for 0 and rounds
steps in floats: a choice and a value with a step by their number. What is recorded is the parameter's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.short_text import meant_or_known, some
from hpo_core.model.space.parameter import ParameterType
from hpo_core.model.space.value_tests import Condition, alternatives, holds, in_words, said
from hpo_core.model.trial import Params

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution


MOST_DRAWS = 10_000
"""A configuration that is not forbidden is drawn again so often at most."""


class SearchSpace:
    """The parameters of a study, ordered so that conditions come after what they name.

    Args:
        forbidden: combinations that are never tried.

    Raises:
        ValueError: a condition names an unknown parameter, a value that cannot occur, or a cycle.
    """

    def __init__(self, parameters: Mapping[str, ParameterType], forbidden: Sequence[Condition] = ()) -> None:
        self.parameters: dict[str, ParameterType] = dict(parameters)
        for name, parameter in self.parameters.items():
            for other in parameter.parents():
                if other not in self.parameters:
                    raise ValueError(
                        f"space.{name}.when names {other!r}, which is no parameter of this space; "
                        f"{meant_or_known(other, self.parameters)}"
                    )
        self.order = self._sorted()
        self._conditions = {name: self.parameters[name].conditions() for name in self.order}
        for name, conditions in self._conditions.items():
            for condition in conditions:
                for other, test in condition.items():
                    test.check(f"space.{name}.when", other, self.parameters[other])
        self._forbidden = alternatives(list(forbidden))
        for i, condition in enumerate(self._forbidden):
            if not condition:
                raise ValueError(f"forbidden[{i}] is empty, which forbids everything; name parameters, or drop it")
            if unknown := [name for name in condition if name not in self.parameters]:
                raise ValueError(
                    f"forbidden[{i}] names {unknown[0]!r}, which is no parameter; "
                    f"{meant_or_known(unknown[0], self.parameters)}"
                )
            for other, test in condition.items():
                test.check(f"forbidden[{i}]", other, self.parameters[other])

    def _sorted(self) -> tuple[str, ...]:
        # Those without conditions first, then those that depend on them, each wave in the given order.
        sorter = TopologicalSorter({name: parameter.parents() for name, parameter in self.parameters.items()})
        try:
            sorter.prepare()
        except CycleError as error:
            raise ValueError(
                f"space: the conditions of {some(dict.fromkeys(error.args[1]))} form a circle; a parameter may depend "
                "only on ones that do not depend on it"
            ) from None
        place = {name: i for i, name in enumerate(self.parameters)}
        done: list[str] = []
        while sorter.is_active():
            wave = sorted(sorter.get_ready(), key=place.__getitem__)
            sorter.done(*wave)
            done += wave
        return tuple(done)

    def is_active(self, name: str, values: Mapping[str, Any]) -> bool:
        conditions = self._conditions[name]
        return not conditions or any(holds(condition, values) for condition in conditions)

    def combinations(self, values: Mapping[str, Sequence[Any]], where: str) -> list[Params]:
        """All configurations of these values that conditions and forbidden combinations leave; the last varies fastest.

        Args:
            where: what asks, for messages.

        Raises:
            SpecError: there are too many to list, or none.
        """
        found: list[Params] = []
        waiting: list[tuple[int, Params]] = [(0, {})]
        names = [name for name in self.order if name in values]
        for _ in range(limits.GRID_STEPS):
            if not waiting:
                break
            place, point = waiting.pop()
            if place == len(names):
                if not self.forbidden_by(point):
                    found.append(point)
            elif not self.is_active(names[place], point):
                waiting.append((place + 1, point))
            else:
                name = names[place]
                waiting += [(place + 1, point | {name: value}) for value in reversed(values[name])]
        if waiting:
            raise SpecError(
                f"{where}: at most about {limits.GRID_STEPS:,} points, whole and partial ones, are listed one by one; "
                "give fewer values, or have parameters drawn."
            )
        if not found:
            raise SpecError(f"{where}: every point of the grid is forbidden; give other points, or forbid less.")
        return found

    def above(self, name: str) -> list[str]:
        return self.parameters[name].parents()

    def condition_in_words(self, name: str) -> str:
        return in_words(self._conditions[name])

    @property
    def has_forbidden(self) -> bool:
        return bool(self._forbidden)

    def forbidden_by(self, values: Mapping[str, Any]) -> str:
        return next((in_words([one]) for one in self._forbidden if holds(one, values)), "")

    def draw(self, stream: Stream, given: Mapping[str, Any] | None = None) -> Params:
        """One configuration, each active parameter independently; inactive ones are absent.

        Args:
            given: values that are taken as they are.

        Raises:
            SpecError: only forbidden ones came up.
        """
        for _ in range(MOST_DRAWS):
            values = self._draw(stream, given)
            if not self._forbidden or not self.forbidden_by(values):
                return values
        raise SpecError(
            f"forbidden: {MOST_DRAWS:,} configurations drawn one after the other were all forbidden; forbid less, or "
            "narrow the space to what is left."
        )

    def _draw(self, stream: Stream, given: Mapping[str, Any] | None) -> Params:
        values: Params = {}
        for name in self.order:
            if not self._conditions[name] or self.is_active(name, values):
                fixed = given is not None and name in given
                values[name] = given[name] if given and fixed else self.parameters[name].draw(stream)
        return values

    def complaints(self, values: Mapping[str, Any]) -> list[str]:
        found = [f"{name} is no parameter of this space" for name in values if name not in self.parameters]
        for name in self.order:
            active = self.is_active(name, values)
            if active and name not in values:
                found.append(f"{name} is missing")
            elif not active and name in values:
                found.append(f"{name} is given although its condition does not hold")
            elif active and not self.parameters[name].contains(values[name]):
                found.append(f"{name} = {values[name]!r} lies outside its range or choices")
        if not found and (forbidden := self.forbidden_by(values)):
            found.append(f"it is forbidden that {forbidden}")
        return found


def given_values(space: SearchSpace, values: Mapping[str, Any], where: str) -> Params:
    """The values as the space has them, in its order: 1 is 1.0 where the parameter is a float.

    Args:
        where: where they stand, for messages.

    Raises:
        ValueError: an unknown name, a value outside its range or choices, or a conditional parameter whose condition
            the given values do not meet; with place, value, rule and cure.
    """
    if unknown := [name for name in values if name not in space.parameters]:
        hint = meant_or_known(unknown[0], space.parameters, "it has")
        raise ValueError(f"{where}: {said(unknown[0])} is no parameter of the space; {hint}")
    found: Params = {}
    for name in space.order:
        if name not in values:
            continue
        if not space.is_active(name, found):
            condition = space.condition_in_words(name)
            raise ValueError(
                f"{where}.{name} = {said(values[name])}: {name} takes part only where {condition}, "
                f"and {_named(space.above(name), found)}; give that too, or drop {name}"
            )
        try:
            found[name] = space.parameters[name].taken(values[name])
        except ValueError as error:
            raise ValueError(f"{where}.{name} = {said(values[name])} {error}") from None
    if forbidden := space.forbidden_by(found):
        raise ValueError(f"{where}: it is forbidden that {forbidden}; change one of these values")
    return found


def _named(names: list[str], found: Params) -> str:
    return ", ".join(f"{name} is {said(found[name]) if name in found else 'not given'}" for name in names)


def suggest(space: SearchSpace, trial: Trial, given: Params | None = None) -> Params:
    """A configuration that an Optuna trial suggests.

    Args:
        given: values that are taken as they are.
    """
    values: Params = {}
    for name in space.order:
        if not space.is_active(name, values):
            continue
        parameter = space.parameters[name]
        if given is not None and name in given:
            values[name] = given[name]
        else:
            values[name] = parameter.from_scale(_asked(trial, name, parameter.scale()))
    return values


def _asked(trial: Trial, name: str, scale: BaseDistribution) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(scale, CategoricalDistribution):
        return trial.suggest_categorical(name, scale.choices)
    assert isinstance(scale, FloatDistribution | IntDistribution)
    if isinstance(scale, FloatDistribution):
        return float(trial.suggest_float(name, scale.low, scale.high, log=scale.log))
    # Optuna 4's BruteForceSampler answers with a number of numpy's, which no journal takes
    return int(trial.suggest_int(name, scale.low, scale.high, log=scale.log))


def distributions(space: SearchSpace, names: Iterable[str]) -> dict[str, BaseDistribution]:
    return {name: space.parameters[name].scale() for name in names}


def seen(space: SearchSpace, params: Params) -> dict[str, Any]:
    return {name: space.parameters[name].on_scale(value) for name, value in params.items()}


def shown(space: SearchSpace, params: Params) -> tuple[dict[str, Any], dict[str, BaseDistribution], dict[str, Any]]:
    """A configuration as a copy in Optuna shows it to people: values and ranges as they are.

    Returns:
        Parameters, their distributions, and what fits none: parameters of no space, values outside their range.
    """
    values: dict[str, Any] = {}
    ranges: dict[str, BaseDistribution] = {}
    others: dict[str, Any] = {}
    for name, value in params.items():
        if name not in space.parameters or not (parameter := space.parameters[name]).contains(value):
            others[name] = value
        else:
            values[name], ranges[name] = parameter.seen(value), parameter.distribution()
    return values, ranges, others
