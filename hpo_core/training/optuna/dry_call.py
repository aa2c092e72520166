"""The space of an Optuna objective, found by calling it: every call ends at its first report.

1. Each value of each choice, and of each integer with few values, once against the first values of the others.
2. The upper ends of ranges; random draws over the whole space; all values of longer integers, where what is
   suggested may depend on them; pairs of values. As far as the limits of calls and seconds allow.

A parameter that is suggested under some values of one or two others only gets the condition that says so
(``conditions.py``); where they do not explain it, it gets none and is named. So is what was not gone through.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.training.optuna.conditions import Conditions, same_place, values_of
from hpo_core.training.optuna.suggestions import Description, Suggestions, agree, in_yaml

MOST_CALLS = 200
MOST_VALUES = 10
"""Integers with more values (numbers of layers have fewer) are gone through only where something hinges on them."""
DRAWS = 30
CHECKS = 40
"""Calls kept to check conditions on two parameters: a few draws agree with such a rule by chance."""
MOST_SECONDS = 60.0
"""After that only what comes under 1 is called: an objective that never reports is trained in full by each call."""


class _Enough(BaseException):
    """Ends a call; no objective catches it by accident."""


@dataclass(frozen=True, slots=True)
class FoundSpace:
    """What the calls of an objective came to."""

    space: dict[str, Description]
    unclear: list[str]
    """Suggested under some choices only, and one or two parameters do not explain which."""
    calls: int
    gaps: list[str]
    """What was not gone through, in words."""


class DryTrial(Suggestions):
    """Answers with the value in ``chosen``; else with a drawn one, or without ``draw`` with the first one."""

    number = 0
    user_attrs: dict[str, Any] = {}  # noqa: RUF012  (empty for every trial)

    def __init__(self, chosen: Mapping[str, Any], draw: random.Random | None = None) -> None:
        self.found: dict[str, Description] = {}
        self.params: dict[str, Any] = {}
        self.chosen = dict(chosen)
        self.draw = draw

    def _suggest(self, call: str, name: str, asked: Description) -> Any:
        known = self.found.setdefault(name, asked)
        if not agree(asked, known):
            raise ObjectiveError(
                f"trial.{call}({name!r}) asks for {in_yaml(asked)} and earlier for {in_yaml(known)}; in a study a "
                "parameter has one range. Use two names."
            )
        if name not in self.params:
            self.params[name] = self._answer(name, asked)
        return self.params[name]

    def _answer(self, name: str, asked: Description) -> Any:
        if name in self.chosen:
            wanted = self.chosen[name]
            if isinstance(wanted, int | float) if "low" in asked else same_place(wanted, asked) is not None:
                return wanted
        if self.draw is not None:
            return _drawn(asked, self.draw)
        return asked["choices"][0] if "choices" in asked else asked["low"]

    def set_user_attr(self, key: str, value: Any) -> None:
        """Nobody asks for it."""

    def report(self, value: float, step: int) -> None:
        raise _Enough

    def should_prune(self) -> bool:
        raise _Enough


def find_space(objective: Callable[[Any], Any]) -> FoundSpace:
    """Descriptions by name, with conditions, and what they leave open.

    Raises:
        ObjectiveError: one name with two ranges, or nothing suggested.
        Exception: whatever the objective raises in a call under 1 above; later ones only count as a gap.
    """
    search = _Search(objective)
    search.singles(optional=False)
    if not search.space:
        raise ObjectiveError("The objective suggested nothing before its first report.")
    search.ends()
    search.draws()
    search.long_integers()
    search.pairs()
    checked = search.checked()
    unclear = []
    conditions = search.conditions()
    for name in search.conditional():
        when = conditions.of(name)
        if when is None or (len(when) > 1 and checked.get(name) != when):
            unclear.append(name)
        else:
            search.space[name]["when"] = when
    return FoundSpace(search.space, unclear, search.called, search.gaps())


class _Search:
    def __init__(self, objective: Callable[[Any], Any]) -> None:
        self.objective = objective
        self.space: dict[str, Description] = {}
        self.calls: list[DryTrial] = []
        """Those that did not raise."""
        self.called = 0
        self.waiting: list[dict[str, Any]] = [{}]
        self.contexts: dict[str, dict[str, Any]] = {}
        """Under which choices a parameter was found."""
        self.missed_pairs = 0
        self.drawn = 0
        self.raised: list[str] = []
        self.reserve = DRAWS
        """Calls kept for later."""
        self.deadline = time.monotonic() + MOST_SECONDS

    def spent(self, *, optional: bool = True) -> bool:
        """Whether a limit is reached."""
        return self.called >= MOST_CALLS - self.reserve or (optional and time.monotonic() > self.deadline)

    def call(self, chosen: Mapping[str, Any], draw: random.Random | None = None, *, optional: bool = True) -> None:
        trial = DryTrial(chosen, draw)
        self.called += 1
        try:
            self.objective(trial)
        except _Enough:
            self.calls.append(trial)
        except ObjectiveError:
            raise
        except Exception as error:
            if not optional:
                raise
            self.raised.append(f"{type(error).__name__}: {error}")
        else:
            self.calls.append(trial)
        for name, asked in trial.found.items():
            if name not in self.space:
                self.space[name] = asked
                context = trial.chosen if draw is None else _until(name, trial.params)
                self.contexts[name] = context
                self.waiting += [context | {name: value} for value in _few(asked)[1:]]
            elif not agree(asked, self.space[name]):
                raise ObjectiveError(
                    f"{name!r} is suggested as {in_yaml(self.space[name])} and, under other choices, as "
                    f"{in_yaml(asked)}; in a study a parameter has one range. Use two names."
                )

    def singles(self, *, optional: bool = True) -> None:
        while self.waiting and not self.spent(optional=optional):
            self.call(self.waiting.pop(0), optional=optional)

    def ends(self) -> None:
        done: set[str] = set()
        while (name := next((name for name in self.space if name not in done), None)) and not self.spent():
            done.add(name)
            if not _few(self.space[name]):
                self.call(self.contexts[name] | {name: _probes(self.space[name])[-1]})
                self.singles()

    def draws(self) -> None:
        pairs_suffice = len(self.space) < 3 and all(map(_few, self.space.values()))
        while self.reserve and not pairs_suffice and time.monotonic() <= self.deadline:
            self.reserve -= 1
            self.call({}, random.Random(self.drawn))
            self.drawn += 1
            self.singles()
        self.reserve = 0

    def long_integers(self) -> None:
        """All values of an integer that stands before a parameter whose condition is not known yet."""
        done: set[str] = set()
        while (suspect := self._suspect(done)) is not None:
            name, open_end = suspect
            done.add(name)
            for value in values_of(self.space[name]) or ():
                if self.spent():
                    return
                self.call(self.contexts[open_end] | {name: value})
                self.singles()

    def _suspect(self, done: set[str]) -> tuple[str, str] | None:
        """Such an integer, and the first parameter without a condition that it stands before."""
        left = MOST_CALLS - self.called
        params = [call.params for call in self.calls]
        conditions = self.conditions()
        open_ends = [name for name in self.conditional() if conditions.of(name) is None]
        for name, asked in self.space.items():
            values = None if name in done or _few(asked) else values_of(asked)
            if values is None or len(values) > left:
                continue
            for end in open_ends:
                if all(name in call for call in params if end in call):
                    return name, end
        return None

    def pairs(self) -> None:
        """Each pair of values of any two parameters; of ranges, their ends."""
        self.reserve = CHECKS
        for one, two in itertools.combinations(list(self.space), 2):
            base = self.contexts[one] | self.contexts[two]
            if any(base[name] != value for name, value in self.contexts[one].items()):
                continue  # never suggested together
            both = [call.params for call in self.calls if one in call.params and two in call.params]
            tried = {repr((params[one], params[two])) for params in both}
            for values in itertools.product(_probes(self.space[one]), _probes(self.space[two])):
                if repr(values) in tried:
                    continue
                if self.spent():
                    self.missed_pairs += 1
                else:
                    self.call(base | dict(zip((one, two), values, strict=True)))
                    self.singles()

    def checked(self) -> dict[str, dict[str, Any]]:
        """Conditions on two parameters that held when calls were made to refute them."""
        self.reserve = 0
        held: dict[str, dict[str, Any]] = {}
        for name in self.conditional():
            for turn in range(3):  # where one is refuted, there may be another one
                rule = self.conditions().of(name)
                if rule is None or len(rule) == 1 or not self._test(name, rule, turn):
                    break
                if self.conditions().of(name) == rule:
                    held[name] = rule
                    break
        return held

    def _test(self, name: str, rule: Mapping[str, Any], turn: int) -> bool:
        """Where the parameter was found, with a value the rule forbids; and draws within the rule. False: no time."""
        wanted = {other: value if isinstance(value, list) else [value] for other, value in rule.items()}
        flipped = [
            self.contexts[name] | {other: value}
            for other, values in wanted.items()
            for value in values_of(self.space[other]) or ()
            if value not in values
        ]
        draws = [random.Random(1000 * turn + k) for k in range(6)]
        if self.called + len(flipped) + len(draws) > MOST_CALLS:
            return False
        for chosen in flipped:
            self.call(chosen)
        for draw in draws:
            self.call({other: draw.choice(values) for other, values in wanted.items()}, draw)
        self.singles()
        return not self.spent()

    def conditions(self) -> Conditions:
        return Conditions(self.space, [call.params for call in self.calls])

    def conditional(self) -> list[str]:
        """Parameters that not every call suggested."""
        return [name for name in self.space if not all(name in call.params for call in self.calls)]

    def gaps(self) -> list[str]:
        found = []
        if self.waiting:
            names = dict.fromkeys(next(reversed(chosen)) for chosen in self.waiting)
            found.append(f"some values of {_listed(list(names))}")
        ranges = [name for name, asked in self.space.items() if not self._went_through(name, asked)]
        draws = f" but for {self.drawn} random draws" if self.drawn else ""
        if ranges:
            found.append(f"values between the ends of {_listed(ranges)}{draws}")
        if self.missed_pairs:
            found.append(f"{self.missed_pairs} pairs of values")
        if len(self.space) > 2:
            found.append(f"combinations of three or more parameters{draws}")
        if self.raised:
            found.append(f"what follows where the objective raised ({len(self.raised)} calls; {self.raised[0][:200]})")
        if time.monotonic() > self.deadline:
            found.append(f"anything more after {MOST_SECONDS:g} s")
        return found

    def _went_through(self, name: str, asked: Description) -> bool:
        values = values_of(asked)
        if _few(asked) or values is None:
            return values is not None
        return {call.params[name] for call in self.calls if name in call.params} >= set(values)


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _until(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return dict(itertools.takewhile(lambda item: item[0] != name, params.items()))


def _few(asked: Description) -> list[Any]:
    """All values of a choice or of an integer with few; empty for what has more."""
    values = values_of(asked)
    return list(values) if values is not None and ("choices" in asked or len(values) <= MOST_VALUES) else []


def _probes(asked: Description) -> list[Any]:
    values = values_of(asked)
    return _few(asked) or [asked["low"], asked["high"] if values is None else values[-1]]


def _drawn(asked: Description, draw: random.Random) -> Any:
    if "choices" in asked:
        return draw.choice(asked["choices"])
    low, high, step = asked["low"], asked["high"], asked.get("step")
    log = asked["log"] and low > 0
    if asked["type"] == "int" and not log:
        return draw.choice(range(low, high + 1, step or 1))
    value = math.exp(draw.uniform(math.log(low), math.log(high))) if log else draw.uniform(low, high)
    if step:
        value = low + math.floor((value - low) / step) * step
    return min(max(value, low), high)
