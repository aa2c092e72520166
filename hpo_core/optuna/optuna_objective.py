"""OptunaTrial: runs an unchanged Optuna objective as a training function.

``report(value, step)`` is a step of the trial; ``should_prune()`` is True once the job's target is reached, and never
where the study does not say how many steps a training has: one unit is then the whole call. An objective cannot be
resumed in the middle, so a promoted trial is trained from its start again, with the same seed. An objective that ended
by itself is not called again. A step counts as ``step + 1`` units if the first reported step is 0, else as ``step``
units.
"""

from __future__ import annotations

import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.short_text import did_you_mean
from hpo_core.model.space import (
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    ParameterType,
    same_scalar,
)
from hpo_core.model.trial import real_number
from hpo_core.spec.study_yaml import in_one_line
from hpo_core.training.handle import TrialHandle
from hpo_core.training.objective import objective_callable
from hpo_core.training.request import JobRequest
from hpo_core.training.saved_state import seed_all
from hpo_core.training.user_code import causes

_space_type: TypeAdapter[dict[str, ParameterType]] = TypeAdapter(dict[str, Parameter])


class ObjectiveStudy:
    """The study as an objective sees it while it trains: name and directions.

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
        from optuna.study import StudyDirection

        return [StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE for mode in self._modes]

    @property
    def user_attrs(self) -> dict[str, Any]:
        return {}

    system_attrs = user_attrs

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trial.study.{name} is not there: an objective can read study_name, direction, directions, metric_names "
            "and user_attrs of its study. Others' results are not known while a trial trains: it must come to the same "
            "result whatever runs beside it. Look at them afterwards (`hpo show`)."
        )


class ObjectiveTrial(ABC):
    """Base of the trials that an Optuna objective may get: ``suggest_*`` and facts of the trial.

    Args:
        number: of the trial.
        study: the ``trial.study``.
    """

    def __init__(self, number: int, study: ObjectiveStudy) -> None:
        optuna = sys.modules.get("optuna")
        if optuna is not None:  # for objectives that look at the type
            optuna.trial.BaseTrial.register(type(self))
        self.number = self._trial_id = number  # callbacks ask for the id
        self.study = study
        self.datetime_start = datetime.now()
        self.suggested: dict[str, ParameterType] = {}
        self.values: dict[str, Any] = {}
        """Values of the parameters suggested so far."""

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.values)

    @property
    def distributions(self) -> dict[str, Any]:
        """Optuna distributions of the parameters suggested so far."""
        return {name: asked.distribution() for name, asked in self.suggested.items()}

    @property
    @abstractmethod
    def constraints(self) -> dict[str, float]:
        """Constraints set so far; feasible where all are at most 0."""

    @property
    def system_attrs(self) -> dict[str, Any]:
        return {f"constraints:{name}": value for name, value in self.constraints.items()}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trial.{name} is not there: the trial of a study here has suggest_*, report, should_prune, "
            "set_constraint, constraints, user_attrs, system_attrs, params, distributions, number, datetime_start and "
            "a read-only study, but no Optuna study or database behind it."
        )

    @abstractmethod
    def _answer(self, call: str, name: str, asked: ParameterType) -> Any:
        """Return a value for the parameter that is asked for; ``call`` is the method's name, for messages."""

    def _suggest(self, call: str, kind: type[ParameterType], name: str, **fields: Any) -> Any:
        try:
            asked = kind(**fields)
        except ValueError as error:
            raise ObjectiveError(f"trial.{call}({name!r}, ...): {error.errors()[0]['msg']}.") from None  # type: ignore[attr-defined]
        return self._answer(call, name, asked)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        fields = {"low": float(low), "high": float(high), "log": bool(log), "step": step}
        return float(self._suggest("suggest_float", FloatParameter, name, type="float", **fields))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        fields = {"low": int(low), "high": int(high), "log": bool(log), "step": int(step)}
        return int(self._suggest("suggest_int", IntParameter, name, type="int", **fields))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        plain = [plain_choice(name, choice) for choice in choices]
        value = self._suggest("suggest_categorical", CategoricalParameter, name, type="categorical", choices=plain)
        # as the objective wrote it: 1.0 where the study file says 1, a tuple where it says a list
        return next(choice for choice, known in zip(choices, plain, strict=True) if same_scalar(known, value))

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


def same_range(asked: ParameterType, known: ParameterType) -> bool:
    if isinstance(asked, CategoricalParameter) or isinstance(known, CategoricalParameter):
        lists = [getattr(one, "choices", None) for one in (asked, known)]
        return same_scalar(*lists)
    ranges = [(type(one), one.low, one.high, one.log, one.step) for one in (asked, known)]  # type: ignore[attr-defined]
    return ranges[0] == ranges[1]


def to_yaml(parameter: ParameterType) -> str:
    """A parameter as one line of YAML, without default values and condition.

    >>> to_yaml(IntParameter(type="int", low=1, high=8))
    '{type: int, low: 1, high: 8}'
    """
    return in_one_line(parameter.model_dump(exclude_defaults=True, exclude={"when"}))


def train_optuna_objective(objective: Callable[[Any], Any], handle: TrialHandle, request: JobRequest) -> None:
    """Call an Optuna objective as the handle's training function.

    Raises:
        ObjectiveError: a suggestion differs from the study's space, or no usable value came back.
    """
    state = ObjectiveState()
    handle.track(optuna=state)
    trial = OptunaTrial(handle, request, state, handle.steps())
    if handle.resource == handle.target:  # the job asks for what was reached before
        trial.finish(None)
    elif state.ended:
        print(f"Trial {handle.number}: its objective came to its own end in an earlier job, which is taken from there.")
        trial.replay()
    else:
        seed_all(handle.seed)  # steps() has restored the state at the end of the job before
        try:
            returned = objective_callable(objective)(trial)
        except Exception as error:
            if not trial.was_pruned(error):
                raise
            trial.pruned()
        else:
            trial.returned(returned)


class ObjectiveState:
    """State of a trial between its jobs; saved in its checkpoints."""

    def __init__(self) -> None:
        self.user_attrs: dict[str, Any] = {}
        self.first_step: int | None = None
        self.ended = False
        """True once the objective ended by itself; ``result`` and ``reports`` are then complete."""
        self.result: list[float] = []
        self.reports: dict[int, float] = {}
        self.constraints: dict[str, float] = {}

    @property
    def base(self) -> int:
        """Units of training that are done after step 0: 1 where steps count from 0."""
        return 1 if self.first_step == 0 else 0

    def state_dict(self) -> dict[str, Any]:
        """All of it; reports and constraints only where they are complete."""
        return vars(self) if self.ended else vars(self) | {"reports": {}, "constraints": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def values_at(self, target: int) -> list[float] | None:
        beyond = [resource for resource in self.reports if resource >= target]
        if self.ended and not any(resource > target for resource in beyond):
            return self.result
        return [self.reports[min(beyond)]] if beyond else None


class OptunaTrial(ObjectiveTrial):
    """The part of ``optuna.Trial`` that an objective may use while it trains."""

    def __init__(self, handle: TrialHandle, request: JobRequest, state: ObjectiveState, steps: Iterator[int]) -> None:
        super().__init__(handle.number, ObjectiveStudy(request.setup.study, request.setup.metrics, request.setup.modes))
        self._handle = handle
        self._metrics = request.setup.metrics
        self._constraints = request.setup.constraints
        self._params = request.job.params
        self._space = _space_type.validate_python(request.setup.space)
        self._state = state
        self._steps = steps
        self._is_whole = request.setup.unit_is_whole
        self._begun = False
        self._stop_requested = False
        self._has_warned = False

    @property
    def user_attrs(self) -> dict[str, Any]:
        return json.loads(json.dumps(self._state.user_attrs))  # type: ignore[no-any-return]

    @property
    def constraints(self) -> dict[str, float]:
        return dict(self._state.constraints)

    def set_constraint(self, key: str, value: float) -> None:
        """Set a constraint, which is satisfied where it is at most 0. Of several values the first counts, as in Optuna.

        Raises:
            ObjectiveError: the study does not name this constraint.
            TypeError: the value is no number.
            ValueError: the value is NaN.
        """
        if key not in self._constraints:
            known = f"only {', '.join(self._constraints)}" if self._constraints else "none"
            raise ObjectiveError(
                f"trial.set_constraint({key!r}, ...): the study has {known} under constraints. Write "
                f"`constraints: [{', '.join([*self._constraints, key])}]` into the study file, or correct the name."
            )
        if (number := real_number(value)) is None:
            raise TypeError(f"trial.set_constraint({key!r}, {value!r}) takes a real number.")
        if math.isnan(number):
            raise ValueError(f"trial.set_constraint({key!r}, ...) got NaN, which Optuna does not allow either.")
        self._state.constraints.setdefault(key, number)

    def set_user_attr(self, key: str, value: Any) -> None:
        try:
            self._state.user_attrs[key] = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            raise ObjectiveError(
                f"trial.set_user_attr({key!r}, ...): {error}. User attributes are JSON, as in Optuna's own storages."
            ) from None

    def report(self, value: float, step: int) -> None:
        """Report an intermediate value. Of several at one step the first one counts, as in Optuna.

        Steps rise: a value for an earlier step than the last one counts for nothing, with a warning.
        """
        self._refuse_several("report")
        try:
            number, step = real_number(value), int(step)
        except (TypeError, ValueError) as error:
            raise TypeError(f"trial.report({value!r}, {step!r}) takes a float and an int: {error}") from error
        if number is None:
            raise TypeError(f"trial.report({value!r}, {step!r}) takes a float and an int: {value!r} is no real number")
        if step < 0:
            raise ValueError(f"trial.report(..., step={step}): steps are not negative")
        if self._state.first_step is None:
            self._state.first_step = step
        resource = step + self._state.base
        last = max(self._state.reports, default=0)
        if resource < last and resource not in self._state.reports and not self._has_warned:
            self._has_warned = True
            self._handle.warn(
                f"trial.report(..., step={step}) came after step {last - self._state.base}; steps must rise, and a "
                "value for an earlier one counts for nothing"
            )
        if resource not in self._state.reports:
            self._state.reports[resource] = number
            self._note(resource, number)
        self._handle.alive()

    def should_prune(self) -> bool:
        """True if the job's target is reached. Whether the trial is promoted is the study's decision.

        False where the study does not say how many steps a training has: the objective then comes to its own end.
        """
        self._refuse_several("should_prune")
        self._stop_requested = not self._is_whole and self._reached() and not self._goes_on()
        return self._stop_requested

    def _reached(self) -> bool:
        return max(self._state.reports, default=0) >= self._handle.target

    def _goes_on(self) -> bool:
        if not self._handle.may_go_on or (values := self._values()) is None:
            return False
        while self._reached():
            target = self._handle.target
            self._report_at_target(values)
            if next(self._steps, None) is None:
                return False
            for resource, value in sorted(self._state.reports.items()):
                if resource > target:
                    self._note(resource, value)
            values = self._values() or values
        return True

    def returned(self, value: Any) -> None:
        if not self._stop_requested:
            self._state.result = self._as_result(value)
            self._state.ended = True
        self.finish(self._values())

    def pruned(self) -> None:
        """Finish after the objective raised ``TrialPruned``.

        If it did so without ``should_prune()`` being True, its last value is its final result.
        """
        if not self._stop_requested:
            last = max(self._state.reports, default=None)
            worst = [math.nan] * len(self._metrics)
            self._state.result = worst if last is None else [self._state.reports[last]]
            self._state.ended = True
        self.finish(self._values())

    def replay(self) -> None:
        """Report again what an objective that ended by itself reported in an earlier job."""
        for resource, value in sorted(self._state.reports.items()):
            self._note(resource, value)
        self.finish(self._values())

    def _values(self) -> list[float] | None:
        # Values at the target; those that the objective ended with where its whole call is one unit.
        return self._state.result if self._is_whole else self._state.values_at(self._handle.target)

    def finish(self, values: list[float] | None) -> None:
        if values is not None:
            self._report_at_target(values)
        for _ in self._steps:
            pass

    def _report_at_target(self, values: list[float]) -> None:
        self._advance(self._handle.target)
        self._handle.report(**dict(zip(self._metrics, values, strict=True)), **self._set_constraints())

    def _answer(self, call: str, name: str, asked: ParameterType) -> Any:
        """The trial's value of a parameter, after checking the request against the study's space.

        Raises:
            ObjectiveError: the space has no such parameter, has another range, or it is inactive in this trial.
        """
        known, params = self._space.get(name), self._params
        line = f"`{name}: {to_yaml(asked)}`"
        if known is None and name not in params:
            meant = did_you_mean(name, self._space)
            raise ObjectiveError(
                f"trial.{call}({name!r}): the study's space has no {name!r}; it has {', '.join(self._space)}"
                f"{f'; {meant}' if meant else '.'} Write {line} under space (values come from there), or correct the "
                "name."
            )
        if known is None:  # one of the study's constants
            try:
                asked.taken(params[name])
            except ValueError as error:
                raise ObjectiveError(
                    f"trial.{call}({name!r}) asks for {to_yaml(asked)}, and constants has {name} = {params[name]!r}, "
                    f"which {error}. Give it a value that the objective asks for, or take it out of constants."
                ) from None
        elif not same_range(asked, known):
            raise ObjectiveError(
                f"trial.{call}({name!r}) asks for {line}, the study's space has `{name}: {to_yaml(known)}`. The two "
                "must agree: change the objective, or start a new study with the other range."
            )
        elif name not in params:
            found = ", ".join(f"{one} = {params[one]!r}" if one in params else f"no {one}" for one in known.parents())
            raise ObjectiveError(
                f"trial.{call}({name!r}): the study's space has it only when {in_one_line(known.when)}, and this trial "
                f"has {found}. Ask for it under that condition only, or change space.{name}.when."
            )
        self.suggested[name], self.values[name] = known or asked, params[name]
        return params[name]

    def _note(self, resource: int, value: float) -> None:
        if not self._is_whole and self._handle.resource < resource <= self._handle.target:
            self._advance(resource)
            self._handle.report(**{self._metrics[0]: value}, **self._state.constraints)

    def _set_constraints(self) -> dict[str, float]:
        missing = [name for name in self._constraints if name not in self._state.constraints]
        if missing:
            raise ObjectiveError(
                f"The study's constraint {missing[0]!r} was not set when the trial was judged at "
                f"{self._handle.target}. Call trial.set_constraint({missing[0]!r}, value) before trial.report() and "
                "trial.should_prune(), or drop it from constraints of the study."
            )
        return self._state.constraints

    def was_pruned(self, error: Exception) -> bool:
        optuna = sys.modules.get("optuna")  # without it nobody can have raised it
        pruned = () if optuna is None else optuna.TrialPruned
        within = causes(error) if self._stop_requested else ()
        return isinstance(error, pruned) or any(isinstance(one, pruned) or "TrialPruned" in str(one) for one in within)

    def _advance(self, resource: int) -> None:
        while not self._begun or self._handle.resource < resource - 1:
            next(self._steps)
            self._begun = True

    def _refuse_several(self, call: str) -> None:
        if len(self._metrics) > 1:
            raise ObjectiveError(
                f"trial.{call}() says nothing where several objectives are optimized (in Optuna, too): return all of "
                f"{', '.join(self._metrics)} at the end, or give the study one metric."
            )

    def _as_result(self, value: Any) -> list[float]:
        several = len(self._metrics) > 1
        try:
            values = [number for item in (value if several else [value]) if (number := real_number(item)) is not None]
        except TypeError:  # one value where there are several objectives
            values = []
        if len(values) != len(self._metrics):
            what = f"{len(self._metrics)} numbers ({', '.join(self._metrics)})" if several else "a number"
            raise ObjectiveError(
                f"The objective returned {value!r} where {what} belongs. Return the value it is tuned by."
            )
        return values
