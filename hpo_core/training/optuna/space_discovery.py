"""Finds the search space of an Optuna objective by calling it; every call ends at its first report.

1. Each value of each choice, and of each integer with few values, once with the first values of the others.
2. As far as the limits of calls and seconds allow: the upper ends of ranges; random draws over the whole space; pairs
   of values.

A parameter that is suggested only under some values of one or two others gets a condition. Where they do not explain
it, it gets none and is listed as unclear. What was not tried is listed as a gap.
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
from hpo_core.training.optuna.trial_adapter import (
    ObjectiveStudy,
    ObjectiveTrial,
    objective_callable,
    same_range,
    to_yaml,
)

MAX_VALUES = 20
"""Integers with more values are ranges: not all of their values are tried one by one."""
MAX_CALLS = 200
RANDOM_DRAWS = 30
CONDITION_CHECKS = 40
"""Calls reserved for checking conditions on two parameters: a few draws agree with such a rule by chance."""
MAX_SECONDS = 60.0
"""Seconds after which only the calls of step 1 are made: an objective that never reports trains in full each time."""


def values_of(asked: ParameterType) -> Sequence[Any]:
    """All values of a parameter; empty for a range of floats."""
    if isinstance(asked, ListedParameter):
        return asked.listed()
    return range(asked.low, asked.high + 1, asked.step) if isinstance(asked, IntParameter) else ()


def few_values(asked: ParameterType) -> list[Any]:
    """All values of a choice, or of an integer with at most ``MAX_VALUES``; empty for any other parameter."""
    if isinstance(asked, IntParameter) and asked.last_step >= MAX_VALUES:
        return []
    return list(values_of(asked))


def last_value(asked: ParameterType) -> Any:
    """The upper end of a range."""
    return values_of(asked)[-1] if not isinstance(asked, FloatParameter) else asked.high


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
        """Whether a report was reached; libraries may have made another exception of it since."""
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
    unclear: list[str]
    """Parameters suggested under some choices only, which no condition on one or two others explains."""
    calls: int
    gaps: list[str]
    """What was not tried, in words."""
    constraints: list[str]
    """Names of the constraints set before the first report."""
    mode: str | None
    """``min`` or ``max``, where the objective looks at ``trial.study.direction``."""


def find_space(objective: Callable[[Any], Any]) -> FoundSpace:
    """Find the parameters of an objective, their ranges and conditions, by at most ``MAX_CALLS`` calls.

    Raises:
        ObjectiveError: one name has two ranges, or nothing is suggested before the first report.
        Exception: what the objective raises in a call of step 1; errors in later calls count as gaps.
    """
    search = _SpaceSearch(objective_callable(objective))
    search.try_single_values(optional=False)
    if not search.space:
        raise ObjectiveError("The objective suggested nothing before its first report.")
    search.try_range_ends()
    search.try_random_draws()
    search.try_pairs()
    conditions = search.confirmed_conditions()
    return FoundSpace(
        space={
            name: {"type": asked.type}
            | asked.model_dump(exclude_defaults=True)
            | ({"when": when} if (when := conditions.get(name)) else {})
            for name, asked in search.space.items()
        },
        unclear=[name for name, when in conditions.items() if when is None],
        calls=search.called,
        gaps=search.gaps(),
        constraints=list(dict.fromkeys(name for call in search.calls for name in call.constraints)),
        mode=search.mode if any(trial.study.direction_read for trial in search.calls) else None,
    )


class _SpaceSearch:
    """The calls made so far, what they showed, and which are still to be made."""

    def __init__(self, objective: Callable[[Any], Any]) -> None:
        self.objective = objective
        self.space: dict[str, ParameterType] = {}
        self.calls: list[DryTrial] = []
        """Calls that did not raise."""
        self.called = 0
        self.pending: list[dict[str, Any]] = [{}]
        self.contexts: dict[str, dict[str, Any]] = {}
        """Choices under which a parameter was first suggested, by its name."""
        self.skipped_pairs = 0
        self.drawn = 0
        self.errors: list[str] = []
        self.mode = "min"
        """Mode of the metric, as the objective is told; the other one where it refuses this one."""
        self.reserve = RANDOM_DRAWS
        """Calls that later steps need."""
        self.deadline = time.monotonic() + MAX_SECONDS

    def limit_reached(self, *, optional: bool = True) -> bool:
        """Whether no further call may be made; the time limit counts for optional calls alone."""
        return self.called >= MAX_CALLS - self.reserve or (optional and time.monotonic() > self.deadline)

    def call(self, chosen: Mapping[str, Any], stream: Stream | None = None, *, optional: bool = True) -> None:
        trial = self._dry_call(chosen, stream, optional)
        for name, asked in trial.suggested.items():
            if name not in self.space:
                self.space[name] = asked
                context = trial.chosen if stream is None else _suggested_before(name, trial.values)
                self.contexts[name] = context
                self.pending += [context | {name: value} for value in few_values(asked)[1:]]
            elif not same_range(asked, self.space[name]):
                raise ObjectiveError(
                    f"{name!r} is suggested as {to_yaml(self.space[name])} and, under other choices, as "
                    f"{to_yaml(asked)}; in a study a parameter has one range. Use two names."
                )

    def _dry_call(self, chosen: Mapping[str, Any], stream: Stream | None, optional: bool) -> DryTrial:
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
                return self._dry_call(chosen, stream, optional)
            elif optional:
                self.errors.append(f"{type(error).__name__}: {error}")
            else:
                raise
        else:
            self.calls.append(trial)
        return trial

    def try_single_values(self, *, optional: bool = True) -> None:
        while self.pending and not self.limit_reached(optional=optional):
            self.call(self.pending.pop(0), optional=optional)

    def try_range_ends(self) -> None:
        done: set[str] = set()
        while (name := next((name for name in self.space if name not in done), None)) and not self.limit_reached():
            done.add(name)
            if not few_values(self.space[name]):
                self.call(self.contexts[name] | {name: last_value(self.space[name])})
                self.try_single_values()

    def try_random_draws(self) -> None:
        pairs_suffice = len(self.space) < 3 and all(map(few_values, self.space.values()))
        while self.reserve and not pairs_suffice and time.monotonic() <= self.deadline:
            self.reserve -= 1
            self.call({}, Stream(self.drawn, "space", 0))
            self.drawn += 1
            self.try_single_values()
        self.reserve = 0

    def try_pairs(self) -> None:
        """Each pair of values of any two parameters; of ranges, their ends."""
        self.reserve = CONDITION_CHECKS
        for one, two in itertools.combinations(list(self.space), 2):
            base = self.contexts[one] | self.contexts[two]
            if any(base[name] != value for name, value in self.contexts[one].items()):
                continue  # never suggested together
            both = [call.values for call in self.calls if one in call.values and two in call.values]
            tried = {repr((params[one], params[two])) for params in both}
            probes = [few_values(found := self.space[name]) or [found.low, last_value(found)] for name in (one, two)]  # type: ignore[attr-defined]
            for values in itertools.product(*probes):
                if repr(values) in tried:
                    continue
                if self.limit_reached():
                    self.skipped_pairs += 1
                else:
                    self.call(base | dict(zip((one, two), values, strict=True)))
                    self.try_single_values()

    def confirmed_conditions(self) -> dict[str, dict[str, Any] | None]:
        """Conditions by parameter; one on two others stands where calls that could refute it did not."""
        self.reserve = 0
        confirmed: dict[str, dict[str, Any]] = {}
        for name in self.conditional():
            for turn in range(3):  # where one is refuted, there may be another one
                when = self.condition(name)
                if when is None or len(when) == 1 or not self._test(name, when, turn):
                    break
                if self.condition(name) == when:
                    confirmed[name] = when
                    break
        found = {name: self.condition(name) for name in self.conditional()}
        return {
            name: when if when is None or len(when) == 1 or confirmed.get(name) == when else None
            for name, when in found.items()
        }

    def _test(self, name: str, rule: Mapping[str, Any], turn: int) -> bool:
        """Try to refute a rule: with values that it forbids, and by draws within it. False: too few calls are left."""
        wanted = {other: value if isinstance(value, list) else [value] for other, value in rule.items()}
        forbidden = [
            self.contexts[name] | {other: value}
            for other, values in wanted.items()
            for value in values_of(self.space[other])
            if scalar_key(value) not in map(scalar_key, values)
        ]
        draws = [Stream(turn, "condition", number) for number in range(6)]
        if self.called + len(forbidden) + len(draws) > MAX_CALLS:
            return False
        for chosen in forbidden:
            self.call(chosen)
        for stream in draws:
            self.call({other: stream.choice(values) for other, values in wanted.items()}, stream)
        self.try_single_values()
        return not self.limit_reached()

    def condition(self, name: str) -> dict[str, Any] | None:
        """The condition of a parameter, ``{other: value or values}`` with one or two others; None if there is none.

        All values of the others were tried, and for two others all pairs that the rule allows.
        """
        calls = [call.values for call in self.calls]
        present = [call for call in calls if name in call]
        if not present:
            return None  # suggested by calls that raised alone

        def explained(rule: Mapping[str, set[Any]]) -> bool:
            return all(
                (name in call) == all(scalar_key(call[other]) in wanted for other, wanted in rule.items())
                for call in calls
                if all(other in call for other in rule)
            )

        def listed(rule: Mapping[str, set[Any]]) -> dict[str, Any]:
            when: dict[str, Any] = {}
            for other, wanted in rule.items():
                found = [value for value in values_of(self.space[other]) if scalar_key(value) in wanted]
                when[other] = found[0] if len(found) == 1 and not isinstance(found[0], list) else found
            return when

        rules: dict[str, set[Any]] = {}
        for other, asked in self.space.items():
            values = values_of(asked)
            tried = {scalar_key(call[other]) for call in calls if other in call}
            if other == name or not values or values[len(tried) :]:
                continue
            if not all(other in _suggested_before(name, call) for call in present):
                continue  # a condition can only name parameters suggested before
            rules[other] = {scalar_key(call[other]) for call in present}
            if explained({other: rules[other]}):
                return listed({other: rules[other]})
            if rules[other] == tried:
                del rules[other]
        for one, two in itertools.combinations(rules, 2):
            pairs = {(scalar_key(call[one]), scalar_key(call[two])) for call in calls if one in call and two in call}
            rule = {one: rules[one], two: rules[two]}
            if explained(rule) and pairs.issuperset(itertools.product(rules[one], rules[two])):
                return listed(rule)
        return None

    def conditional(self) -> list[str]:
        """Parameters that not every call suggested."""
        return [name for name in self.space if not all(name in call.values for call in self.calls)]

    def gaps(self) -> list[str]:
        found = []
        if self.pending:
            names = dict.fromkeys(next(reversed(chosen)) for chosen in self.pending)
            found.append(f"some values of {_name_list(list(names))}")
        ranges = [name for name, asked in self.space.items() if not few_values(asked)]
        draws = f" but for {self.drawn} random draws" if self.drawn else ""
        if ranges:
            found.append(f"values between the ends of {_name_list(ranges)}{draws}")
        if self.skipped_pairs:
            found.append(f"{self.skipped_pairs} pairs of values")
        if len(self.space) > 2:
            found.append(f"combinations of three or more parameters{draws}")
        if self.errors:
            found.append(f"what follows where the objective raised ({len(self.errors)} calls; {self.errors[0][:200]})")
        if time.monotonic() > self.deadline:
            found.append(f"anything more after {MAX_SECONDS:g} s")
        return found


def _name_list(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _suggested_before(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return dict(itertools.takewhile(lambda item: item[0] != name, params.items()))
