"""DryTrial: a trial that only records what an objective suggests, and ends at its first report."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from hpo_core.model.errors import ObjectiveError
from hpo_core.training.optuna.conditions import value_index, values_of
from hpo_core.training.optuna.study_view import ObjectiveStorage, ObjectiveStudy
from hpo_core.training.optuna.suggestions import (
    NO_SUCH_ATTRIBUTE,
    Description,
    Suggestions,
    distributions_of,
    same_range,
    system_attrs_of,
    to_yaml,
)

MAX_VALUES = 10
"""Integers with more values are ranges: not all of their values are tried one by one."""


class FirstReportReached(BaseException):
    """Ends a dry call at its first report; no ``except Exception`` of an objective catches it."""


class DryTrial(Suggestions):
    """The ``trial`` of a dry call: answers suggestions, records them, trains nothing.

    Args:
        chosen: values by parameter name.
        rng: draws the values that are not chosen; None: the first value of each.
    """

    number = 0
    _trial_id = 0

    def __init__(self, chosen: Mapping[str, Any], rng: random.Random | None = None, *, mode: str = "min") -> None:
        super().__init__()
        self.study = DryStudy(mode)
        self.storage = ObjectiveStorage()
        self.datetime_start = datetime.now()
        self.user_attrs: dict[str, Any] = {}
        self.constraints: dict[str, float] = {}
        self.ended = False
        """Whether a report was reached; libraries may have made another exception of it since."""
        self.suggested: dict[str, Description] = {}
        self.params: dict[str, Any] = {}
        self.chosen = dict(chosen)
        self.rng = rng

    def _suggest(self, call: str, name: str, asked: Description) -> Any:
        known = self.suggested.setdefault(name, asked)
        if not same_range(asked, known):
            raise ObjectiveError(
                f"trial.{call}({name!r}) asks for {to_yaml(asked)} and earlier for {to_yaml(known)}; in a study a "
                "parameter has one range. Use two names."
            )
        if name not in self.params:
            self.params[name] = self._value(name, asked)
        return self.params[name]

    def _value(self, name: str, asked: Description) -> Any:
        if name in self.chosen:
            value = self.chosen[name]
            if isinstance(value, int | float) if "low" in asked else value_index(value, asked) is not None:
                return value
        if self.rng is not None:
            return random_value(asked, self.rng)
        return asked["choices"][0] if "choices" in asked else first_value(asked)

    @property
    def distributions(self) -> dict[str, Any]:
        """Optuna distributions of the parameters suggested so far."""
        return distributions_of(self.suggested)

    @property
    def system_attrs(self) -> dict[str, Any]:
        """What was set so far: constraints, as Optuna names them, and what functions of Optuna wrote."""
        return self.storage.get_trial_system_attrs(0) | system_attrs_of(self.constraints)

    def set_user_attr(self, key: str, value: Any) -> None:
        self.user_attrs[key] = value

    def set_constraint(self, key: str, value: float) -> None:
        self.constraints.setdefault(key, float(value))

    def report(self, value: float, step: int) -> None:
        self._end()

    def should_prune(self) -> bool:
        return self._end()

    def _end(self) -> NoReturn:
        self.ended = True
        raise FirstReportReached

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(NO_SUCH_ATTRIBUTE.format(name=name))


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
