"""The ``suggest_*`` calls of an Optuna objective, as descriptions in the words of a study's space."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from hpo_core.model.errors import ObjectiveError

Description = dict[str, Any]
"""A parameter as the study file has it: ``{"type": "float", "low": 0.1, "high": 1.0, "log": True}``."""


class Suggestions(ABC):
    """Every ``suggest_*`` of Optuna 5, brought down to one method: what to answer for this description."""

    @abstractmethod
    def _suggest(self, call: str, name: str, asked: Description) -> Any:
        """The value; ``call`` is the method's name, for messages."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        asked = {"type": "float", "low": float(low), "high": float(high), "log": bool(log)}
        if step is not None:
            asked["step"] = float(step)
        return float(self._suggest("suggest_float", name, asked))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        asked = {"type": "int", "low": int(low), "high": int(high), "log": bool(log), "step": int(step)}
        return int(self._suggest("suggest_int", name, asked))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        asked = list(choices)
        value = self._suggest("suggest_categorical", name, {"type": "categorical", "choices": asked})
        return next(choice for choice in asked if same(choice, value))  # 1.0 where the study file says 1

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        return self.suggest_float(name, low, high, step=q)


def answer(
    call: str, name: str, asked: Description, *, space: Mapping[str, Description], params: Mapping[str, Any]
) -> Any:
    """The trial's value of ``name``, once what was asked for is what the study's space has.

    Raises:
        ObjectiveError: the space has no such parameter, has it otherwise, or not under this trial's conditions.
    """
    known = space.get(name)
    line = f"`{name}: {in_yaml(asked)}`"
    if known is None:
        raise ObjectiveError(
            f"trial.{call}({name!r}): the study's space has no {name!r}; it has {', '.join(space)}. Write {line} under "
            "space (values come from there), or mend the name."
        )
    if not agree(asked, known):
        here = f"`{name}: {in_yaml(known)}`"
        raise ObjectiveError(
            f"trial.{call}({name!r}) asks for {line}, the study's space has {here}. The two must agree: "
            "change the objective, or start a new study with the other range."
        )
    if name not in params:
        when = known.get("when") or {}
        found = ", ".join(f"{other} = {params[other]!r}" if other in params else f"no {other}" for other in when)
        raise ObjectiveError(
            f"trial.{call}({name!r}): the study's space has it only when {_flow(when)}, and this trial has {found}. "
            f"Ask for it under that condition only, or change space.{name}.when."
        )
    return params[name]


def agree(asked: Description, known: Description) -> bool:
    """Whether both describe the same values; conditions and PBT's marks are the space's own business."""
    kinds = {known["type"], "categorical"} if known["type"] == "ordinal" else {known["type"]}
    if asked["type"] not in kinds:
        return False
    if "choices" in asked:
        pairs = zip(asked["choices"], known["choices"], strict=False)
        return len(asked["choices"]) == len(known["choices"]) and all(same(a, b) for a, b in pairs)
    if (asked["low"], asked["high"], asked["log"]) != (known["low"], known["high"], bool(known.get("log"))):
        return False
    default = 1 if asked["type"] == "int" else None
    return bool(asked.get("step", default) == (known.get("step") or default))


def in_yaml(description: Description) -> str:
    """One line of YAML, without what goes without saying.

    >>> in_yaml({"type": "int", "low": 1, "high": 8, "log": False, "step": 1, "when": {}})
    '{type: int, low: 1, high: 8}'
    """
    silent = {("log", False), ("static", False), ("step", 1 if description["type"] == "int" else None)}
    shown = {key: value for key, value in description.items() if value != {} and not _among((key, value), silent)}
    return _flow(shown)


def key_in_yaml(name: str) -> str:
    """A parameter's name as a key of a mapping: quoted where it is no plain word."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", name) and not _is_word(name) else json.dumps(name)


def _is_word(name: str) -> bool:
    return name.lower() in {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def _among(item: tuple[str, Any], silent: set[tuple[str, Any]]) -> bool:
    return any(item[0] == key and same(item[1], value) for key, value in silent)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and value.isidentifier() and value.lower() not in {"true", "false", "null"}:
        return value
    return json.dumps(value, default=str)


def same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
