"""Finds the search space of an Optuna objective by calling it; every call ends at its first report.

Each value of each choice, and of each integer with few values, is tried once with the first values of the others; then
values are drawn at random. A parameter that some calls do not suggest gets a condition on one other parameter; where
none explains all calls, the objective is refused.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.rng import Stream
from hpo_core.model.space import FloatParameter, IntParameter, ListedParameter, ParameterType, scalar_key
from hpo_core.training.optuna_trial import (
    ObjectiveStudy,
    ObjectiveTrial,
    objective_callable,
    same_range,
    to_yaml,
)

MAX_VALUES = 20
"""Integers with more values are ranges: not all of their values are tried one by one."""
MAX_VALUE_CALLS = 100
RANDOM_CALLS = 100
MAX_SECONDS = 60.0
"""Seconds after which nothing is drawn any more: an objective that never reports trains in full each time."""


def values_of(asked: ParameterType) -> Sequence[Any]:
    """All values of a parameter; empty for a range of floats."""
    if isinstance(asked, ListedParameter):
        return asked.listed()
    return range(asked.low, asked.high + 1, asked.step) if isinstance(asked, IntParameter) else ()


def few_values(asked: ParameterType) -> list[Any]:
    if isinstance(asked, IntParameter) and asked.last_step >= MAX_VALUES:
        return []
    return list(values_of(asked))


def first_value(asked: ParameterType) -> Any:
    """The value that a dry call tries first: the first one; of a continuous range its middle.

    Libraries often refuse the very end of such a range (a share of 0.0), which a sampler hardly ever proposes.
    """
    if isinstance(asked, FloatParameter):
        return asked.low if asked.step else asked.at_share(0.5)
    return values_of(asked)[0]


class FirstReportReached(BaseException):
    """Ends a dry call at its first report; no ``except Exception`` of an objective catches it."""


class DryTrial(ObjectiveTrial):
    """The ``trial`` of a dry call: answers suggestions, records them, trains nothing, and ends at its first report.

    Args:
        chosen: values by parameter name.
        stream: draws the values that are not chosen; None: the first value of each.
    """

    study: DryStudy

    def __init__(self, chosen: Mapping[str, Any], stream: Stream | None = None, *, mode: str = "min") -> None:
        super().__init__(0, DryStudy(mode))
        self.user_attrs: dict[str, Any] = {}
        self._constraints: dict[str, float] = {}
        self.ended = False
        """True once a report was reached; libraries may have made another exception of it since."""
        self.chosen = dict(chosen)
        self.stream = stream

    @property
    def constraints(self) -> dict[str, float]:
        return self._constraints

    def _answer(self, call: str, name: str, asked: ParameterType) -> Any:
        known = self.suggested.setdefault(name, asked)
        if not same_range(asked, known):
            raise ObjectiveError(
                f"trial.{call}({name!r}) asks for {to_yaml(asked)} and earlier for {to_yaml(known)}; in a study a "
                "parameter has one range. Use two names."
            )
        if name not in self.values:
            fits = name in self.chosen and asked.contains(self.chosen[name])
            drawn = first_value(asked) if self.stream is None else asked.draw(self.stream)
            self.values[name] = self.chosen[name] if fits else drawn
        return self.values[name]

    def set_user_attr(self, key: str, value: Any) -> None:
        self.user_attrs[key] = value

    def set_constraint(self, key: str, value: float) -> None:
        self._constraints.setdefault(key, float(value))

    def report(self, value: float, step: int) -> None:
        self._end()

    def should_prune(self) -> bool:
        return self._end()

    def _end(self) -> NoReturn:
        self.ended = True
        raise FirstReportReached


class DryStudy(ObjectiveStudy):
    """The study of a dry call; remembers whether its direction was looked at.

    Args:
        mode: ``min`` or ``max``, for every objective.
    """

    def __init__(self, mode: str) -> None:
        super().__init__("space", ["value"], [mode])
        self.direction_read = False

    @property
    def directions(self) -> list[Any]:
        self.direction_read = True
        return super().directions


@dataclass(frozen=True, slots=True)
class FoundSpace:
    """Result of :func:`find_space`."""

    space: dict[str, dict[str, Any]]
    """The parameters as a study file has them, without default values."""
    calls: int
    gaps: list[str]
    """Calls that were not tried, in words."""
    constraints: list[str]
    """Names of the constraints set before the first report."""
    mode: str | None
    """``min`` or ``max``, where the objective looks at ``trial.study.direction``."""


def find_space(objective: Callable[[Any], Any]) -> FoundSpace:
    """Find the parameters of an objective, their ranges and conditions, by at most 200 calls.

    Raises:
        ObjectiveError: one name has two ranges, nothing is suggested before the first report, or a parameter is
            suggested in some calls only, which no condition on one other parameter explains.
        Exception: what the objective raises while single values are tried; errors of random draws count as gaps.
    """
    search = _DryCalls(objective_callable(objective))
    search.run()
    if not search.space:
        raise ObjectiveError("The objective suggested nothing before its first report.")
    conditions = {name: search.condition(name) for name in search.conditional()}
    if unclear := [name for name, when in conditions.items() if when is None]:
        ranges = "; ".join(f"{name}: {to_yaml(search.space[name])}" for name in unclear[:_NAMED])
        raise ObjectiveError(
            f"The objective suggests {_name_list(unclear)} in some calls only, which no condition on one other "
            f"parameter explains. Suggest it in every call, or write the space by hand, with its `when` ({ranges})."
        )
    return FoundSpace(
        space={
            name: {"type": asked.type}
            | asked.model_dump(exclude_defaults=True)
            | ({"when": conditions[name]} if name in conditions else {})
            for name, asked in search.space.items()
        },
        calls=search.called,
        gaps=search.gaps(),
        constraints=list(dict.fromkeys(name for call in search.calls for name in call.constraints)),
        mode=search.mode if any(trial.study.direction_read for trial in search.calls) else None,
    )


class _DryCalls:
    """The calls made so far, and what they showed."""

    def __init__(self, objective: Callable[[Any], Any]) -> None:
        self.objective = objective
        self.space: dict[str, ParameterType] = {}
        self.calls: list[DryTrial] = []
        """Calls that did not raise."""
        self.called = 0
        self.errors: list[str] = []
        self.mode = "min"
        """Mode of the metric, as the objective is told; the other one where it refuses this one."""
        self._pending: list[dict[str, Any]] = [{}]
        self._value_calls = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def run(self) -> None:
        self._try_values()
        for number in range(RANDOM_CALLS if self.space else 0):
            if time.monotonic() > self._deadline:
                break
            self._call({}, Stream(number, "space", 0))
            self._try_values()

    def _try_values(self) -> None:
        while self._pending and self._value_calls < MAX_VALUE_CALLS:
            self._value_calls += 1
            self._call(self._pending.pop(0))

    def _call(self, chosen: Mapping[str, Any], stream: Stream | None = None) -> None:
        trial = self._dry_call(chosen, stream)
        for name, asked in trial.suggested.items():
            if name not in self.space:
                self.space[name] = asked
                context = _suggested_before(name, trial.values)
                tried = scalar_key(trial.values[name])
                self._pending += [context | {name: one} for one in few_values(asked) if scalar_key(one) != tried]
            elif not same_range(asked, self.space[name]):
                raise ObjectiveError(
                    f"{name!r} is suggested as {to_yaml(self.space[name])} and, under other choices, as "
                    f"{to_yaml(asked)}; in a study a parameter has one range. Use two names."
                )

    def _dry_call(self, chosen: Mapping[str, Any], stream: Stream | None) -> DryTrial:
        trial = DryTrial(chosen, stream, mode=self.mode)
        self.called += 1
        try:
            self.objective(trial)
        except FirstReportReached:
            self.calls.append(trial)
        except ObjectiveError:
            raise
        except Exception as error:
            if trial.ended:  # CatBoost raises an error of its own for every exception of a callback
                self.calls.append(trial)
            elif self.mode == "min" and not self.calls and trial.study.direction_read:
                self.mode = "max"  # pruning callbacks refuse a direction that does not fit their metric
                return self._dry_call(chosen, stream)
            elif stream is None:
                raise
            else:
                self.errors.append(f"{type(error).__name__}: {error}")
        else:
            self.calls.append(trial)
        return trial

    def conditional(self) -> list[str]:
        return [name for name in self.space if not all(name in call.values for call in self.calls)]

    def condition(self, name: str) -> dict[str, Any] | None:
        """The condition of a parameter, ``{other: value or values}``; None if no other one explains all calls.

        All values of the other one were tried, and it is suggested before.
        """
        calls = [call.values for call in self.calls]
        present = [call for call in calls if name in call]
        for other, asked in self.space.items():
            if other == name or not all(other in _suggested_before(name, call) for call in present):
                continue
            wanted = {scalar_key(call[other]) for call in present}
            values = list(values_of(asked))
            if not wanted or not values or len(values) > len(self._tried(other)):
                continue
            if all((name in call) == (scalar_key(call[other]) in wanted) for call in calls if other in call):
                found = [value for value in values if scalar_key(value) in wanted]
                return {other: found[0] if len(found) == 1 and not isinstance(found[0], list) else found}
        return None

    def _tried(self, name: str) -> set[Any]:
        return {scalar_key(call.values[name]) for call in self.calls if name in call.values}

    def gaps(self) -> list[str]:
        found = []
        if names := [name for name, asked in self.space.items() if len(few_values(asked)) > len(self._tried(name))]:
            found.append(f"some values of {_name_list(names)}")
        if self.errors:
            found.append(f"what follows where the objective raised ({len(self.errors)} calls; {self.errors[0][:200]})")
        if time.monotonic() > self._deadline:
            found.append(f"anything more after {MAX_SECONDS:g} s")
        return found


_NAMED = 8


def _name_list(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _suggested_before(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return dict(itertools.takewhile(lambda item: item[0] != name, params.items()))
