"""What an Optuna objective sees of trial and study; its ``suggest_*`` calls as parameters of a study's space."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import yaml

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.short_text import did_you_mean

Description = dict[str, Any]
"""A parameter as the study file has it: ``{"type": "float", "low": 0.1, "high": 1.0, "log": True}``."""


_OTHER_TRIALS = frozenset(
    {"best_params", "best_trial", "best_trials", "best_value", "get_trials", "trials", "trials_dataframe"}
)
_OF_THE_STUDY = frozenset(
    {
        "add_trial", "add_trials", "ask", "enqueue_trial", "optimize", "pruner", "sampler", "set_metric_names",
        "set_system_attr", "set_user_attr", "stop", "tell",
    }
)  # fmt: skip


class ObjectiveStorage:
    """The ``trial.storage`` of an objective: system attributes of its own trial, as long as it trains.

    Functions of Optuna such as ``report_cross_validation_scores`` write there.
    """

    def __init__(self) -> None:
        self._attrs: dict[str, Any] = {}

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._attrs[key] = value

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        return dict(self._attrs)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trial.storage.{name} is not there: an objective has no Optuna storage, and can set and read the "
            "system attributes of its own trial alone."
        )


class ObjectiveStudy:
    """What an objective may know of its study while it trains: name and directions.

    Args:
        name: of the study.
        metrics: names of the objectives.
        modes: ``min`` or ``max`` for each of them.
    """

    _storage = None  # no pruning callback finds a database to write to

    def __init__(self, name: str, metrics: Sequence[str], modes: Sequence[str]) -> None:
        self.study_name = name
        self.metric_names = list(metrics)
        self._modes = list(modes)

    @property
    def direction(self) -> Any:
        """The ``optuna.study.StudyDirection`` of the one objective.

        Raises:
            RuntimeError: there are several objectives, as in Optuna.
        """
        if len(self._modes) > 1:
            raise RuntimeError("A study with several objectives has no single direction; use trial.study.directions.")
        return self.directions[0]

    @property
    def directions(self) -> list[Any]:
        """The ``optuna.study.StudyDirection`` of each objective."""
        from optuna.study import StudyDirection

        return [StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE for mode in self._modes]

    @property
    def user_attrs(self) -> dict[str, Any]:
        """Empty: a study here has none."""
        return {}

    system_attrs = user_attrs

    def __getattr__(self, name: str) -> Any:
        if name in _OTHER_TRIALS:
            raise ObjectiveError(
                f"trial.study.{name} is not known while a trial trains: a trial must come to the same result whatever "
                "others run beside it. Look at them afterwards (`hpo show`), or compute it in the objective."
            )
        if name in _OF_THE_STUDY:
            raise ObjectiveError(
                f"trial.study.{name} is not there for an objective: trial.study can only be read. Say it in the study "
                "file, or with `hpo` at the command line."
            )
        raise AttributeError(
            f"trial.study.{name} is not there: an objective sees study_name, direction, directions, metric_names and "
            "user_attrs of its study."
        )


class ObjectiveTrial(ABC):
    """What the trials that an Optuna objective may get have in common: ``suggest_*`` and what is known of the trial.

    Args:
        number: of the trial.
        study: the ``trial.study``.
    """

    def __init__(self, number: int, study: ObjectiveStudy) -> None:
        optuna = sys.modules.get("optuna")
        if optuna is not None:  # for objectives that look at the type
            optuna.trial.BaseTrial.register(type(self))
        self.number = self._trial_id = number  # callbacks ask for the id before they look for a storage
        self.study = study
        self.storage = ObjectiveStorage()
        self.datetime_start = datetime.now()
        """When this attempt started."""
        self.suggested: dict[str, Description] = {}
        self.values: dict[str, Any] = {}
        """Values of the parameters suggested so far."""

    @property
    def params(self) -> dict[str, Any]:
        """Parameters suggested so far."""
        return dict(self.values)

    @property
    def distributions(self) -> dict[str, Any]:
        """Optuna distributions of the parameters suggested so far."""
        from pydantic import TypeAdapter

        from hpo_core.model.space import Parameter

        adapter: TypeAdapter[Any] = TypeAdapter(Parameter)
        return {name: adapter.validate_python(asked).distribution() for name, asked in self.suggested.items()}

    @property
    @abstractmethod
    def constraints(self) -> dict[str, float]:
        """Constraints set so far; feasible where all are at most 0."""

    @property
    def system_attrs(self) -> dict[str, Any]:
        """What was set so far: constraints, as Optuna names them, and what functions of Optuna wrote."""
        constraints = {f"constraints:{name}": value for name, value in self.constraints.items()}
        return self.storage.get_trial_system_attrs(self.number) | constraints

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trial.{name} is not there: the trial of a study here has suggest_*, report, should_prune, "
            "set_constraint, constraints, user_attrs, system_attrs, params, distributions, number, datetime_start and "
            "a read-only study, but no Optuna study or database behind it."
        )

    @abstractmethod
    def _suggest(self, call: str, name: str, asked: Description) -> Any:
        """Return a value for the parameter that ``asked`` describes; ``call`` is the method's name, for messages."""

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
        plain = [plain_choice(name, choice) for choice in choices]
        value = self._suggest("suggest_categorical", name, {"type": "categorical", "choices": plain})
        # as the objective wrote it: 1.0 where the study file says 1, a tuple where it says a list
        return next(choice for choice, known in zip(choices, plain, strict=True) if equal_values(known, value))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        return self.suggest_float(name, low, high, step=q)


def plain_choice(name: str, choice: Any) -> Any:
    """A choice as a study file can hold it: tuples as lists, numbers of NumPy as Python's.

    Raises:
        ObjectiveError: it holds anything else.
    """
    if choice is None or isinstance(choice, str | bool | int | float):
        return choice
    if isinstance(choice, list | tuple):
        return [plain_choice(name, item) for item in choice]
    if hasattr(choice, "item") and getattr(choice, "ndim", None) == 0:
        return choice.item()
    raise ObjectiveError(
        f"trial.suggest_categorical({name!r}, ...) has the choice {choice!r}, a {type(choice).__qualname__}; a study "
        "file holds numbers, strings, true, false, null and lists of them. Suggest a name, and look it up in a dict."
    )


def suggested_value(
    call: str, name: str, asked: Description, *, space: Mapping[str, Description], params: Mapping[str, Any]
) -> Any:
    """The trial's value of a parameter, after checking the request against the study's space.

    Args:
        call: name of the ``suggest_*`` method, for messages.
        asked: what the objective asks for.
        space: what the study has.
        params: the trial's values.

    Raises:
        ObjectiveError: the space has no such parameter, has another range, or it is inactive in this trial.
    """
    known = space.get(name)
    line = f"`{name}: {to_yaml(asked)}`"
    if known is None and name in params:  # one of the study's constants
        check_constant(call, name, asked, params[name])
        return params[name]
    if known is None:
        meant = did_you_mean(name, space)
        raise ObjectiveError(
            f"trial.{call}({name!r}): the study's space has no {name!r}; it has {', '.join(space)}"
            f"{f'; {meant}' if meant else '.'} Write {line} under space (values come from there), or correct the name."
        )
    if not same_range(asked, known):
        here = f"`{name}: {to_yaml(known)}`"
        raise ObjectiveError(
            f"trial.{call}({name!r}) asks for {line}, the study's space has {here}. The two must agree: "
            "change the objective, or start a new study with the other range."
        )
    if name not in params:
        when = known.get("when") or {}
        others = dict.fromkeys(other for one in (when if isinstance(when, list) else [when]) for other in one)
        found = ", ".join(f"{other} = {params[other]!r}" if other in params else f"no {other}" for other in others)
        condition = in_one_line(when)
        raise ObjectiveError(
            f"trial.{call}({name!r}): the study's space has it only when {condition}, and this trial has {found}. "
            f"Ask for it under that condition only, or change space.{name}.when."
        )
    return params[name]


def check_constant(call: str, name: str, asked: Description, value: Any) -> None:
    """Refuse a constant that the objective does not ask for.

    Raises:
        ObjectiveError: value, request and cure.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    inside = (
        any(equal_values(value, choice) for choice in asked["choices"])
        if "choices" in asked
        else number and asked["low"] <= value <= asked["high"] and (asked["type"] == "float" or value == int(value))
    )
    if not inside:
        raise ObjectiveError(
            f"trial.{call}({name!r}) asks for {to_yaml(asked)}, and constants has {name} = {value!r}. Give "
            "it a value that the objective asks for, or take it out of constants."
        )


def same_range(asked: Description, known: Description) -> bool:
    """Whether both describe the same values; conditions and PBT's ``static`` are not compared."""
    kinds = {known["type"], "categorical"} if known["type"] == "ordinal" else {known["type"]}
    if asked["type"] not in kinds:
        return False
    if "choices" in asked:
        pairs = zip(asked["choices"], known["choices"], strict=False)
        return len(asked["choices"]) == len(known["choices"]) and all(equal_values(a, b) for a, b in pairs)
    if (asked["low"], asked["high"], asked["log"]) != (known["low"], known["high"], bool(known.get("log"))):
        return False
    default = 1 if asked["type"] == "int" else None
    return bool(asked.get("step", default) == (known.get("step") or default))


def to_yaml(description: Description) -> str:
    """A description as one line of YAML, without default values.

    >>> to_yaml({"type": "int", "low": 1, "high": 8, "log": False, "step": 1, "when": {}})
    '{type: int, low: 1, high: 8}'
    """
    defaults = {("log", False), ("static", False), ("step", 1 if description["type"] == "int" else None)}
    defaults |= {("default", None), ("weights", None)}

    def is_default(key: str, value: Any) -> bool:
        return value == {} or any(key == name and equal_values(value, default) for name, default in defaults)

    return in_one_line({key: value for key, value in description.items() if not is_default(key, value)})


def in_one_line(value: Any) -> str:
    """A value as YAML in one line.

    >>> in_one_line(["size", "1", {"lr": 1e-05}])
    "[size, '1', {lr: 1.0e-05}]"
    """
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
    return str(text).removesuffix("\n").removesuffix("\n...")


def equal_values(a: Any, b: Any) -> bool:
    """Whether two values are equal and both or neither are booleans (in Python ``True == 1``)."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
