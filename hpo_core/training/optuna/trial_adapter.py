"""An unchanged Optuna objective as a training function: what ``trial`` is to it, and how its end is read.

``report(value, step)`` is a step of the trial, ``should_prune()`` is True once the job's target is reached. An
objective cannot be resumed in its middle, so a promoted trial is trained from its start again, with the same
seed; one that came to its own end is not called again. A step counts as ``step + 1`` units where the first one
reported is 0, else as ``step`` units.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import numpy as np

from hpo_core.model.errors import ObjectiveError
from hpo_core.training.handle import TrialHandle
from hpo_core.training.optuna.suggestions import Description, Suggestions, answer
from hpo_core.training.random_state import seed_all
from hpo_core.training.request import JobRequest


def train_objective(objective: Callable[[Any], Any], handle: TrialHandle, request: JobRequest) -> None:
    """Call an Optuna objective as the handle's training function.

    Raises:
        ObjectiveError: a suggestion differs from the study's space, or no usable value came back.
    """
    memory = Memory()
    handle.track(optuna=memory)
    trial = OptunaTrial(handle, request, memory, handle.steps())
    if handle.resource == handle.target:  # the job asks for what was reached before
        trial.finish(None)
    elif memory.ended:
        print(f"Trial {handle.number}: its objective came to its own end in an earlier job, which is taken from there.")
        trial.replay()
    else:
        seed_all(handle.seed)  # steps() has restored the state at the end of the job before
        try:
            returned = objective(trial)
        except Exception as error:
            if not _is_pruned(error):
                raise
            trial.pruned()
        else:
            trial.returned(returned)


class Memory:
    """What the jobs of a trial hand on to each other."""

    def __init__(self) -> None:
        self.user_attrs: dict[str, Any] = {}
        self.first_step: int | None = None
        self.ended = False
        """Whether the objective came to its own end: ``result`` and ``reports`` say all it ever will."""
        self.result: list[float] = []
        self.reports: dict[int, float] = {}

    @property
    def base(self) -> int:
        """Units behind the trial at step 0."""
        return 1 if self.first_step == 0 else 0

    def state_dict(self) -> dict[str, Any]:
        reports = self.reports if self.ended else {}
        return {
            "user_attrs": json.dumps(self.user_attrs),
            "first_step": self.first_step,
            "ended": self.ended,
            "result": self.result,
            "resources": np.array(list(reports), np.int64),
            "values": np.array(list(reports.values()), np.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.user_attrs = json.loads(state["user_attrs"])
        self.first_step = state["first_step"]
        self.ended = state["ended"]
        self.result = state["result"]
        self.reports = dict(zip(state["resources"].tolist(), state["values"].tolist(), strict=True))

    def values_at(self, target: int) -> list[float] | None:
        """The result at ``target``: the first value reported there or beyond; the result, where none lies beyond."""
        beyond = [resource for resource in self.reports if resource >= target]
        if self.ended and not any(resource > target for resource in beyond):
            return self.result
        return [self.reports[min(beyond)]] if beyond else None


class OptunaTrial(Suggestions):
    """The part of ``optuna.Trial`` that an objective uses while it trains."""

    def __init__(self, handle: TrialHandle, request: JobRequest, memory: Memory, steps: Iterator[int]) -> None:
        self._handle = handle
        self._metrics = request.metrics
        self._space: dict[str, Description] = request.space
        self._memory = memory
        self._steps = steps
        self._begun = False
        self._told_to_stop = False
        self._suggested: dict[str, Any] = {}
        self._started = datetime.now()
        optuna = sys.modules.get("optuna")
        if optuna is not None:  # for objectives that look at the type
            optuna.trial.BaseTrial.register(OptunaTrial)

    @property
    def number(self) -> int:
        return self._handle.number

    @property
    def params(self) -> dict[str, Any]:
        """What was suggested so far."""
        return dict(self._suggested)

    @property
    def user_attrs(self) -> dict[str, Any]:
        """Kept over all jobs of the trial."""
        return json.loads(json.dumps(self._memory.user_attrs))  # type: ignore[no-any-return]

    @property
    def datetime_start(self) -> datetime:
        """When this attempt began."""
        return self._started

    @property
    def distributions(self) -> dict[str, Any]:
        """Those of what was suggested so far."""
        from pydantic import TypeAdapter

        from hpo_core.model.space import Parameter

        adapter: TypeAdapter[Any] = TypeAdapter(Parameter)
        return {name: adapter.validate_python(self._space[name]).distribution() for name in self._suggested}

    def set_user_attr(self, key: str, value: Any) -> None:
        try:
            self._memory.user_attrs[key] = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            raise ObjectiveError(
                f"trial.set_user_attr({key!r}, ...): {error}. User attributes are JSON, as in Optuna's own storages."
            ) from None

    def report(self, value: float, step: int) -> None:
        """A value at a step. Of several at one step the first one counts, as in Optuna."""
        self._refuse_several("report")
        try:
            number, step = float(value), int(step)
        except (TypeError, ValueError) as error:
            raise TypeError(f"trial.report({value!r}, {step!r}) takes a float and an int: {error}") from error
        if step < 0:
            raise ValueError(f"trial.report(..., step={step}): steps are not negative")
        if self._memory.first_step is None:
            self._memory.first_step = step
        resource = step + self._memory.base
        if resource not in self._memory.reports:
            self._memory.reports[resource] = number
            self._note(resource, number)
        self._handle.alive()

    def should_prune(self) -> bool:
        """True once a report reached the job's target. Whether the trial goes on is decided elsewhere."""
        self._refuse_several("should_prune")
        self._told_to_stop = max(self._memory.reports, default=0) >= self._handle.target
        return self._told_to_stop

    def returned(self, value: Any) -> None:
        """The objective returned."""
        if not self._told_to_stop:
            self._memory.result = self._as_result(value)
            self._memory.ended = True
        self.finish(self._memory.values_at(self._handle.target))

    def pruned(self) -> None:
        """The objective raised ``TrialPruned``, told to or by its own judgement (its last value then stays)."""
        if not self._told_to_stop:
            last = max(self._memory.reports, default=None)
            worst = [math.nan] * len(self._metrics)
            self._memory.result = worst if last is None else [self._memory.reports[last]]
            self._memory.ended = True
        self.finish(self._memory.values_at(self._handle.target))

    def replay(self) -> None:
        """Report again what an objective that came to its own end reported."""
        for resource, value in sorted(self._memory.reports.items()):
            self._note(resource, value)
        self.finish(self._memory.values_at(self._handle.target))

    def finish(self, values: list[float] | None) -> None:
        """Bring the handle to its target, with these values there."""
        if values is not None:
            self._advance(self._handle.target)
            self._handle.report(**dict(zip(self._metrics, values, strict=True)))
        for _ in self._steps:
            pass

    def _suggest(self, call: str, name: str, asked: Description) -> Any:
        value = answer(call, name, asked, space=self._space, params=self._handle.params)
        self._suggested[name] = value
        return value

    def _note(self, resource: int, value: float) -> None:
        """A point of the learning curve, where it is a new one."""
        if self._handle.resource < resource <= self._handle.target:
            self._advance(resource)
            self._handle.report(**{self._metrics[0]: value})

    def _advance(self, resource: int) -> None:
        """Into the step at whose end ``resource`` units are done."""
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
            values = [float(item) for item in value] if several else [float(value)]
        except (TypeError, ValueError):
            values = []
        if len(values) != len(self._metrics):
            what = f"{len(self._metrics)} numbers ({', '.join(self._metrics)})" if several else "a number"
            raise ObjectiveError(
                f"The objective returned {value!r} where {what} belongs. Return the value it is tuned by."
            )
        return values

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trial.{name} is not there: the trial of a study here has suggest_*, report, should_prune, user_attrs, "
            "params, distributions, number and datetime_start, but no Optuna study or storage behind it."
        )


def _is_pruned(error: Exception) -> bool:
    optuna = sys.modules.get("optuna")  # without it nobody can have raised it
    return optuna is not None and isinstance(error, optuna.TrialPruned)
