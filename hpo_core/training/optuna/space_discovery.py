"""Finds the search space of an Optuna objective by calling it; every call ends at its first report.

1. Each value of each choice, and of each integer with few values, once with the first values of the others.
2. As far as the limits of calls and seconds allow: the upper ends of ranges; random draws over the whole space; all
   values of longer integers where a suggestion may depend on them; pairs of values.

A parameter that is suggested only under some values of one or two others gets a condition. Where
they do not explain it, it gets none and is listed as unclear. What was not tried is listed as a gap.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, NoReturn

from hpo_core.model.errors import ObjectiveError
from hpo_core.training.optuna.trial_adapter import (
    Description,
    ObjectiveStudy,
    ObjectiveTrial,
    equal_values,
    objective_callable,
    same_range,
    to_yaml,
)

Calls = Sequence[Mapping[str, Any]]
"""The parameters of each call, in the order of their suggestions."""


def values_of(asked: Description) -> Sequence[Any] | None:
    """All values of a parameter; None for a range of floats."""
    if "choices" in asked:
        return list(asked["choices"])
    return range(asked["low"], asked["high"] + 1, asked["step"]) if asked["type"] == "int" else None


def value_index(value: Any, asked: Description) -> int | None:
    """Index of ``value`` among the parameter's values; None where it is none of them, or for floats."""
    values = values_of(asked)
    if isinstance(values, range):
        return values.index(value) if value in values else None
    return next((index for index, known in enumerate(values or ()) if equal_values(value, known)), None)


class Conditions:
    """The conditions that agree with all calls so far."""

    def __init__(self, space: Mapping[str, Description], calls: Calls) -> None:
        self._space = space
        self._calls = calls
        self._order = [{name: index for index, name in enumerate(call)} for call in calls]
        self._indices = {  # of the values of each call, where a parameter has a list of values
            name: [value_index(call[name], asked) if name in call else None for call in calls]
            for name, asked in space.items()
            if values_of(asked) is not None
        }
        self._tried = {
            name: set(places) - {None} for name, places in self._indices.items() if self._all_values_tried(name, places)
        }

    def rule_for(self, name: str) -> dict[str, Any] | None:
        """The condition of a parameter: ``{other: value or values}`` with one or two others; None if there is none.

        Every value of the others must have been tried, and for two others every pair that the rule allows.
        """
        present = [k for k, call in enumerate(self._calls) if name in call]
        rules: dict[str, set[int | None]] = {}
        for other in self._tried:
            if other == name or not all(other in self._order[k] for k in present):
                continue
            if any(self._order[k][other] > self._order[k][name] for k in present):
                continue  # a condition can only name parameters suggested before
            wanted = {self._indices[other][k] for k in present}
            if self._explains(name, {other: wanted}):
                return {other: self._values(other, wanted)}
            if wanted != self._tried[other]:
                rules[other] = wanted
        for one, two in combinations(rules, 2):
            rule = {one: rules[one], two: rules[two]}
            if self._explains(name, rule) and self._all_pairs_tried(rule):
                return {other: self._values(other, wanted) for other, wanted in rule.items()}
        return None

    def _all_values_tried(self, name: str, places: Sequence[int | None]) -> bool:
        return len(set(places) - {None}) == len(values_of(self._space[name]) or ())

    def _explains(self, name: str, rule: Mapping[str, set[int | None]]) -> bool:
        """Whether, among calls with all parameters of the rule, exactly those that it allows suggested ``name``."""
        return all(
            (name in call) == all(self._indices[other][k] in wanted for other, wanted in rule.items())
            for k, call in enumerate(self._calls)
            if all(other in call for other in rule)
        )

    def _all_pairs_tried(self, rule: Mapping[str, set[int | None]]) -> bool:
        one, two = rule
        seen = set(zip(self._indices[one], self._indices[two], strict=True))
        return all(pair in seen for pair in product(rule[one], rule[two]))

    def _values(self, name: str, places: set[int | None]) -> Any:
        values = [value for place, value in enumerate(values_of(self._space[name]) or ()) if place in places]
        return values[0] if len(values) == 1 and not isinstance(values[0], list) else values


MAX_VALUES = 10
"""Integers with more values are ranges: not all of their values are tried one by one."""


class FirstReportReached(BaseException):
    """Ends a dry call at its first report; no ``except Exception`` of an objective catches it."""


class DryTrial(ObjectiveTrial):
    """The ``trial`` of a dry call: answers suggestions, records them, trains nothing, and ends at its first report.

    Args:
        chosen: values by parameter name.
        rng: draws the values that are not chosen; None: the first value of each.
    """

    study: DryStudy

    def __init__(self, chosen: Mapping[str, Any], rng: random.Random | None = None, *, mode: str = "min") -> None:
        super().__init__(0, DryStudy(mode))
        self.user_attrs: dict[str, Any] = {}
        self._constraints: dict[str, float] = {}
        self.ended = False
        """Whether a report was reached; libraries may have made another exception of it since."""
        self.chosen = dict(chosen)
        self.rng = rng

    @property
    def constraints(self) -> dict[str, float]:
        return self._constraints

    def _suggest(self, call: str, name: str, asked: Description) -> Any:
        known = self.suggested.setdefault(name, asked)
        if not same_range(asked, known):
            raise ObjectiveError(
                f"trial.{call}({name!r}) asks for {to_yaml(asked)} and earlier for {to_yaml(known)}; in a study a "
                "parameter has one range. Use two names."
            )
        if name not in self.values:
            self.values[name] = self._value(name, asked)
        return self.values[name]

    def _value(self, name: str, asked: Description) -> Any:
        if name in self.chosen:
            value = self.chosen[name]
            if isinstance(value, int | float) if "low" in asked else value_index(value, asked) is not None:
                return value
        if self.rng is not None:
            return random_value(asked, self.rng)
        return asked["choices"][0] if "choices" in asked else first_value(asked)

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


def first_value(asked: Description) -> Any:
    """The value of a range that a dry call tries first: the lowest one; of a continuous range its middle.

    Libraries often refuse the very end of such a range (a share of 0.0), which a sampler hardly ever proposes.
    """
    low, high = asked["low"], asked["high"]
    if asked["type"] == "int" or asked.get("step"):
        return low
    return math.sqrt(low) * math.sqrt(high) if asked["log"] and low > 0 else low / 2 + high / 2


def few_values(asked: Description) -> list[Any]:
    """All values of a choice, or of an integer with at most ``MAX_VALUES``; empty for any other parameter."""
    values = values_of(asked)
    return list(values) if values is not None and ("choices" in asked or len(values) <= MAX_VALUES) else []


def probe_values(asked: Description) -> list[Any]:
    """All values where there are few; else the two ends of the range."""
    values = values_of(asked)
    return few_values(asked) or [asked["low"], asked["high"] if values is None else values[-1]]


def random_value(asked: Description, rng: random.Random) -> Any:
    """One value, uniform over the choices or the (logarithmic) range."""
    if "choices" in asked:
        return rng.choice(asked["choices"])
    low, high, step = asked["low"], asked["high"], asked.get("step")
    log = asked["log"] and low > 0
    if asked["type"] == "int" and not log:
        return rng.choice(range(low, high + 1, step or 1))
    value = math.exp(rng.uniform(math.log(low), math.log(high))) if log else rng.uniform(low, high)
    if step:
        value = low + math.floor((value - low) / step) * step
    return min(max(value, low), high)


MAX_CALLS = 200
RANDOM_DRAWS = 30
CONDITION_CHECKS = 40
"""Calls reserved for checking conditions on two parameters: a few draws agree with such a rule by chance."""
MAX_SECONDS = 60.0
"""Seconds after which only the calls of step 1 are made: an objective that never reports trains in full each time."""


@dataclass(frozen=True, slots=True)
class FoundSpace:
    """Result of :func:`find_space`."""

    space: dict[str, Description]
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
    search.try_long_integers()
    search.try_pairs()
    confirmed = search.confirmed_conditions()
    unclear = []
    conditions = search.conditions()
    for name in search.conditional():
        when = conditions.rule_for(name)
        if when is None or (len(when) > 1 and confirmed.get(name) != when):
            unclear.append(name)
        else:
            search.space[name]["when"] = when
    mode = search.mode if any(trial.study.direction_read for trial in search.calls) else None
    return FoundSpace(search.space, unclear, search.called, search.gaps(), search.constraints(), mode)


class _SpaceSearch:
    """The calls made so far, what they showed, and which are still to be made."""

    def __init__(self, objective: Callable[[Any], Any]) -> None:
        self.objective = objective
        self.space: dict[str, Description] = {}
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

    def call(self, chosen: Mapping[str, Any], rng: random.Random | None = None, *, optional: bool = True) -> None:
        trial = self._dry_call(chosen, rng, optional)
        for name, asked in trial.suggested.items():
            if name not in self.space:
                self.space[name] = asked
                context = trial.chosen if rng is None else _suggested_before(name, trial.values)
                self.contexts[name] = context
                self.pending += [context | {name: value} for value in few_values(asked)[1:]]
            elif not same_range(asked, self.space[name]):
                raise ObjectiveError(
                    f"{name!r} is suggested as {to_yaml(self.space[name])} and, under other choices, as "
                    f"{to_yaml(asked)}; in a study a parameter has one range. Use two names."
                )

    def _dry_call(self, chosen: Mapping[str, Any], rng: random.Random | None, optional: bool) -> DryTrial:
        trial = DryTrial(chosen, rng, mode=self.mode)
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
                return self._dry_call(chosen, rng, optional)
            elif optional:
                self.errors.append(f"{type(error).__name__}: {error}")
            else:
                raise
        else:
            self.calls.append(trial)
        return trial

    def constraints(self) -> list[str]:
        """Names of all constraints that a call set."""
        return list(dict.fromkeys(name for call in self.calls for name in call.constraints))

    def try_single_values(self, *, optional: bool = True) -> None:
        while self.pending and not self.limit_reached(optional=optional):
            self.call(self.pending.pop(0), optional=optional)

    def try_range_ends(self) -> None:
        done: set[str] = set()
        while (name := next((name for name in self.space if name not in done), None)) and not self.limit_reached():
            done.add(name)
            if not few_values(self.space[name]):
                self.call(self.contexts[name] | {name: probe_values(self.space[name])[-1]})
                self.try_single_values()

    def try_random_draws(self) -> None:
        pairs_suffice = len(self.space) < 3 and all(map(few_values, self.space.values()))
        while self.reserve and not pairs_suffice and time.monotonic() <= self.deadline:
            self.reserve -= 1
            self.call({}, random.Random(self.drawn))
            self.drawn += 1
            self.try_single_values()
        self.reserve = 0

    def try_long_integers(self) -> None:
        """All values of an integer that stands before a parameter whose condition is not known yet."""
        done: set[str] = set()
        while (suspect := self._unexplained_integer(done)) is not None:
            name, open_end = suspect
            done.add(name)
            for value in values_of(self.space[name]) or ():
                if self.limit_reached():
                    return
                self.call(self.contexts[open_end] | {name: value})
                self.try_single_values()

    def _unexplained_integer(self, done: set[str]) -> tuple[str, str] | None:
        """An integer with many values, and the first parameter without a condition that it stands before."""
        left = MAX_CALLS - self.called
        params = [call.values for call in self.calls]
        conditions = self.conditions()
        open_ends = [name for name in self.conditional() if conditions.rule_for(name) is None]
        for name, asked in self.space.items():
            values = None if name in done or few_values(asked) else values_of(asked)
            if values is None or len(values) > left:
                continue
            for end in open_ends:
                if all(name in call for call in params if end in call):
                    return name, end
        return None

    def try_pairs(self) -> None:
        """Each pair of values of any two parameters; of ranges, their ends."""
        self.reserve = CONDITION_CHECKS
        for one, two in itertools.combinations(list(self.space), 2):
            base = self.contexts[one] | self.contexts[two]
            if any(base[name] != value for name, value in self.contexts[one].items()):
                continue  # never suggested together
            both = [call.values for call in self.calls if one in call.values and two in call.values]
            tried = {repr((params[one], params[two])) for params in both}
            for values in itertools.product(probe_values(self.space[one]), probe_values(self.space[two])):
                if repr(values) in tried:
                    continue
                if self.limit_reached():
                    self.skipped_pairs += 1
                else:
                    self.call(base | dict(zip((one, two), values, strict=True)))
                    self.try_single_values()

    def confirmed_conditions(self) -> dict[str, dict[str, Any]]:
        """Conditions on two parameters that held when calls were made to refute them."""
        self.reserve = 0
        confirmed: dict[str, dict[str, Any]] = {}
        for name in self.conditional():
            for turn in range(3):  # where one is refuted, there may be another one
                rule = self.conditions().rule_for(name)
                if rule is None or len(rule) == 1 or not self._test(name, rule, turn):
                    break
                if self.conditions().rule_for(name) == rule:
                    confirmed[name] = rule
                    break
        return confirmed

    def _test(self, name: str, rule: Mapping[str, Any], turn: int) -> bool:
        """Try to refute a rule: with values that it forbids, and by draws within it. False: no calls are left."""
        wanted = {other: value if isinstance(value, list) else [value] for other, value in rule.items()}
        flipped = [
            self.contexts[name] | {other: value}
            for other, values in wanted.items()
            for value in values_of(self.space[other]) or ()
            if value not in values
        ]
        draws = [random.Random(1000 * turn + k) for k in range(6)]
        if self.called + len(flipped) + len(draws) > MAX_CALLS:
            return False
        for chosen in flipped:
            self.call(chosen)
        for draw in draws:
            self.call({other: draw.choice(values) for other, values in wanted.items()}, draw)
        self.try_single_values()
        return not self.limit_reached()

    def conditions(self) -> Conditions:
        return Conditions(self.space, [call.values for call in self.calls])

    def conditional(self) -> list[str]:
        """Parameters that not every call suggested."""
        return [name for name in self.space if not all(name in call.values for call in self.calls)]

    def gaps(self) -> list[str]:
        found = []
        if self.pending:
            names = dict.fromkeys(next(reversed(chosen)) for chosen in self.pending)
            found.append(f"some values of {_name_list(list(names))}")
        ranges = [name for name, asked in self.space.items() if not self._all_values_tried(name, asked)]
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

    def _all_values_tried(self, name: str, asked: Description) -> bool:
        values = values_of(asked)
        if few_values(asked) or values is None:
            return values is not None
        return {call.values[name] for call in self.calls if name in call.values} >= set(values)


def _name_list(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _suggested_before(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return dict(itertools.takewhile(lambda item: item[0] != name, params.items()))
