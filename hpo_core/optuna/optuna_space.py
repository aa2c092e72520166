"""Finds the search space of an Optuna objective by calling it; every call ends at its first report.

The first call gets the first value of each parameter, the others values that are drawn at random. A parameter that some
calls do not suggest gets a condition on one other parameter; where none explains all calls, the objective is refused.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.rng import Stream
from hpo_core.model.space import FloatParameter, IntParameter, ListedParameter, ParameterType, scalar_key
from hpo_core.optuna.optuna_objective import (
    ObjectiveStudy,
    ObjectiveTrial,
    same_range,
    to_yaml,
)
from hpo_core.training.objective import objective_callable

CALLS = 200
MAX_SECONDS = 30.0
"""Seconds after which no call begins any more: an objective that never reports trains in full each time."""


def values_of(asked: ParameterType) -> Sequence[Any]:
    """All values of a parameter; empty for a range of floats."""
    if isinstance(asked, ListedParameter):
        return asked.listed()
    return range(asked.low, asked.high + 1, asked.step) if isinstance(asked, IntParameter) else ()


def first_value(asked: ParameterType) -> Any:
    """The first value of a parameter; of a continuous range its middle.

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
        stream: draws the values; None: the first value of each parameter.
    """

    study: DryStudy

    def __init__(self, stream: Stream | None, mode: str) -> None:
        super().__init__(0, DryStudy(mode))
        self.user_attrs: dict[str, Any] = {}
        self._constraints: dict[str, float] = {}
        self.ended = False
        """True once a report was reached; libraries may have made another exception of it since."""
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
            self.values[name] = first_value(asked) if self.stream is None else asked.draw(self.stream)
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

    def words(self) -> str:
        not_tried = f", such as {' and '.join(self.gaps)}" if self.gaps else ""
        times = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return f"{times} found {_name_list(list(self.space))}. What is suggested only elsewhere is missing{not_tried}."


def find_space(objective: Callable[[Any], Any]) -> FoundSpace:
    """Find the parameters of an objective, their ranges and conditions, by ``CALLS`` calls.

    Raises:
        ObjectiveError: one name has two ranges, nothing is suggested before the first report, or a parameter is
            suggested in some calls only, which no condition on one other parameter explains.
        Exception: what the objective raises in the first call; errors of later ones count as gaps.
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
        self.is_late = False
        self.mode = "min"
        """Mode of the metric, as the objective is told; the other one where it refuses this one."""

    def run(self) -> None:
        deadline = time.monotonic() + MAX_SECONDS
        self._call(None)
        for number in range(1, CALLS if self.space else 1):
            if time.monotonic() > deadline:
                self.is_late = True
                break
            self._call(Stream(number, "space", 0))

    def _call(self, stream: Stream | None) -> None:
        for name, asked in self._dry_call(stream).suggested.items():
            if not same_range(asked, self.space.setdefault(name, asked)):
                raise ObjectiveError(
                    f"{name!r} is suggested as {to_yaml(self.space[name])} and, under other choices, as "
                    f"{to_yaml(asked)}; in a study a parameter has one range. Use two names."
                )

    def _dry_call(self, stream: Stream | None) -> DryTrial:
        trial = DryTrial(stream, self.mode)
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
                return self._dry_call(stream)
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
            if other == name or not all(other in itertools.takewhile(name.__ne__, call) for call in present):
                continue
            wanted = {scalar_key(call[other]) for call in present}
            values = list(values_of(asked))
            tried = {scalar_key(call[other]) for call in calls if other in call}
            if not wanted or not values or len(values) > len(tried):
                continue
            if all((name in call) == (scalar_key(call[other]) in wanted) for call in calls if other in call):
                found = [value for value in values if scalar_key(value) in wanted]
                return {other: found[0] if len(found) == 1 and not isinstance(found[0], list) else found}
        return None

    def gaps(self) -> list[str]:
        found = []
        if self.errors:
            found.append(f"after an error ({len(self.errors)} calls raised, one of them {self.errors[0][:200]})")
        if self.is_late:
            found.append(f"in a branch that no call of the first {MAX_SECONDS:g} s took")
        return found


_NAMED = 8


def _name_list(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
