"""A study in Prefect: one flow, a task for each rung or generation, in that a task for each job; how its run ends.

``study_run/study_flow.py`` is the body of the flow: it drives the study's loop. ``prefect_pages/study_tasks.py`` calls
the tasks as the loop submits jobs. Nothing is cached, retried or stored here: the journal is the record.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from inspect import Parameter, Signature
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from prefect import Flow, Task, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.states import Completed, Failed

from hpo_core.model.errors import HpoError
from hpo_core.model.short_text import cut
from hpo_core.security.masking import masked, masked_errors
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec
from hpo_core.spec.sent_functions import short_name
from hpo_core.study import Study
from hpo_core.terminal.output import best_line
from hpo_core.views.failure_reasons import failed_words
from hpo_core.views.rungs import halt_words

TaskBody = Callable[[], Awaitable[State[Any]]]
_MOST_SHOWN = 20_000
"""Most characters of a setting among the parameters of a flow run."""


def tune_flow(name: str, parameters: Mapping[str, Any], body: Callable[[], State[Any]]) -> Callable[..., Any]:
    """The flow ``tune`` of one study, with the parameters that Prefect shows.

    Args:
        name: of its flow run.
        body: drives the study, and returns the final state of its flow run.
    """

    def tune(**_: Any) -> State[Any]:
        return body()

    # Prefect shows parameters by the names of the signature
    names = [Parameter(name, Parameter.KEYWORD_ONLY) for name in parameters]
    tune.__signature__ = Signature(names)  # type: ignore[attr-defined]
    # by this name Prefect counts the calls within a flow run; two threads that count at once may share a number
    tune.__qualname__ = f"tune-{name.replace('.', '-')}"
    made = Flow(tune, name="tune", flow_run_name=name, validate_parameters=False, persist_result=False, retries=0)
    return partial(made, **parameters)


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False, retries=0)
async def rung(name: str, body: TaskBody) -> State[Any]:
    """Hold the jobs of one rung of a bracket, from the first to the last."""
    return await body()


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False, retries=0)
async def generation(name: str, body: TaskBody) -> State[Any]:
    """Hold the jobs of one generation of a population, from the first to the last."""
    return await body()


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False, retries=0)
async def job(name: str, body: TaskBody) -> State[Any]:
    """Train one trial to its target: its work is a Dask task, and this awaits the report."""
    return await body()


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False, retries=0)
async def epoch(name: str, body: TaskBody) -> State[Any]:
    """Hold an epoch of the models of a rung that hop over partitions, from the first that begins it to the last."""
    return await body()


def tags_of(spec: StudySpec) -> list[str]:
    """Tags of a study's flow run: a list of runs is filtered by them."""
    return ["hpo", spec.study, spec.search.method, *([f"pool {spec.pool_name}"] if spec.pool_name else [])]


def shown_parameters(spec: StudySpec) -> dict[str, Any]:
    """Parameters of the flow run of a study that no form describes: its name, and what of its file is not as usual.

    Values of thousands of entries (a record, partitions) are cut: a Prefect server takes half a megabyte.
    """
    usual = {name: field.get_default(call_default_factory=True) for name, field in StudySpec.model_fields.items()}
    said = {name: value for name, value in spec.plain().items() if getattr(spec, name) != usual[name]}
    found: dict[str, Any] = {"name": said.pop("study")}
    for name, value in said.items():
        if isinstance(value, str):
            value = short_name(value)  # of a function that was sent by value
        text = json.dumps(value)
        found[name] = value if len(text) <= _MOST_SHOWN else cut(text)
    return found


def end_state(study: Study, cure: str) -> State[Any]:
    """The final state of a flow run whose study ended by itself.

    Args:
        cure: what to do about a study that gave up, or has no result.
    """
    if why := failed_words(study, cure):
        return failed(why)
    halted = None if study.finished else study.state.halted
    words = "" if halted is None else f"{halt_words(study.spec, halted)}; "
    return Completed(message=f"{words}best {best_line(study)}, {study.state.completed_jobs:,} jobs")


def failed(message: str) -> State[Any]:
    return Failed(message=masked(terminal_text(message, lines=True)))


P = ParamSpec("P")
Value = TypeVar("Value")


class Found(NamedTuple, Generic[Value]):
    """A step's result, and the words about it that its task run shows."""

    value: Value
    words: str


def step(
    name: str, around: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Callable[[Callable[P, Found[Value]]], Callable[P, Value]]:
    """Decorator: the function becomes a task, whose callers get ``Found.value``.

    The message of its state is ``Found.words``. The task has no tags, cache, retries or stored result.

    Args:
        name: of the task run; ``{parameter}`` stands for a parameter of the function.
        around: what the function is called within.
    """

    def decorate(function: Callable[P, Found[Value]]) -> Callable[P, Value]:
        @wraps(function)
        def body(*values: P.args, **named: P.kwargs) -> State[Value]:
            try:
                with masked_errors(), around():
                    found, words = function(*values, **named)
            except HpoError as error:
                return Failed(message=str(error), data=error)
            return Completed(message=masked(terminal_text(words)), data=found)

        made: Task[P, Any] = Task(
            body, name=function.__name__, task_run_name=name, cache_policy=NO_CACHE, persist_result=False, retries=0
        )

        @wraps(function)
        def run(*values: P.args, **named: P.kwargs) -> Value:
            with TagsContext(current_tags=set()):  # tags of the flow run are not the tasks'
                state: State[Value] = made(*values, return_state=True, **named)
            if state.is_completed():
                get_run_logger().info(state.message)
            return state.result()

        return run

    return decorate
