"""The space of an Optuna objective, found by calling it: every call ends at its first report.

Each value of each categorical parameter, and of each integer with few values, is tried once against the first
values of the others. A parameter that was suggested under some values of one other parameter only gets the
condition that says so; where no single parameter explains it, it gets none and is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpo_core.errors import ObjectiveError
from hpo_core.training.suggestions import Description, Suggestions, agree, in_yaml

MOST_CALLS = 200
MOST_VALUES = 10
"""Integers with more values (numbers of layers have fewer) are not gone through."""


class _Enough(BaseException):
    """Ends a call; no objective catches it by accident."""


class DryTrial(Suggestions):
    """Answers with the first value, except where ``chosen`` names the place of another one."""

    number = 0
    user_attrs: dict[str, Any] = {}  # noqa: RUF012  (empty for every trial)

    def __init__(self, chosen: dict[str, int]) -> None:
        self.found: dict[str, Description] = {}
        self.params: dict[str, Any] = {}
        self.chosen = chosen

    def _suggest(self, call: str, name: str, asked: Description) -> Any:
        known = self.found.setdefault(name, asked)
        if not agree(asked, known):
            raise ObjectiveError(
                f"trial.{call}({name!r}) asks for {in_yaml(asked)} and earlier for {in_yaml(known)}; in a study a "
                "parameter has one range. Use two names."
            )
        self.params[name] = _values(asked)[self.chosen.get(name, 0)]
        return self.params[name]

    def set_user_attr(self, key: str, value: Any) -> None:
        """Nobody asks for it."""

    def report(self, value: float, step: int) -> None:
        raise _Enough

    def should_prune(self) -> bool:
        raise _Enough


def find_space(objective: Callable[[Any], Any]) -> tuple[dict[str, Description], list[str]]:
    """Descriptions by name, and the names whose condition could not be told.

    Raises:
        ObjectiveError: one name with two ranges, nothing suggested, or more than ``MOST_CALLS`` choices.
        Exception: whatever the objective raises.
    """
    space: dict[str, Description] = {}
    calls: list[DryTrial] = []
    waiting: list[dict[str, int]] = [{}]
    while waiting:
        if len(calls) == MOST_CALLS:
            raise ObjectiveError(f"The objective has more than {MOST_CALLS} values to try; write its space by hand.")
        trial = DryTrial(waiting.pop(0))
        try:
            objective(trial)
        except _Enough:
            pass
        calls.append(trial)
        for name, asked in trial.found.items():
            if name not in space:
                space[name] = asked
                waiting += [trial.chosen | {name: place} for place in range(1, len(_values(asked)))]
            elif not agree(asked, space[name]):
                raise ObjectiveError(
                    f"{name!r} is suggested as {in_yaml(space[name])} and, under other choices, as {in_yaml(asked)}; "
                    "in a study a parameter has one range. Use two names."
                )
    if not space:
        raise ObjectiveError("The objective suggested nothing before its first report.")
    unclear = []
    for name, description in space.items():
        if all(name in call.params for call in calls):
            continue
        when = _condition(name, space, calls)
        if when is None:
            unclear.append(name)
        else:
            description["when"] = when
    return space, unclear


def _values(asked: Description) -> list[Any]:
    if "choices" in asked:
        return list(asked["choices"])
    if asked["type"] == "int":
        values = range(asked["low"], asked["high"] + 1, asked["step"])
        return list(values) if len(values) <= MOST_VALUES else [asked["low"]]
    return [asked["low"]]


def _condition(name: str, space: dict[str, Description], calls: list[DryTrial]) -> dict[str, Any] | None:
    """``{other: value or values}`` where the values of one other parameter tell when ``name`` is suggested."""
    for other, description in space.items():
        values = _values(description)
        if other == name or any(name in call.params and other not in call.params for call in calls):
            continue
        seen = [
            {name in call.params for call in calls if other in call.params and call.chosen.get(other, 0) == place}
            for place in range(len(values))
        ]
        wanted = [value for value, there in zip(values, seen, strict=True) if there == {True}]
        if all(len(there) == 1 for there in seen) and wanted:
            return {other: wanted[0] if len(wanted) == 1 else wanted}
    return None
