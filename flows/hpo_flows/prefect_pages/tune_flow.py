"""A study in Prefect: one flow, a task for each rung or generation, in that a task for each job.

``study_run/study_flow.py`` is the body of the flow: it drives the study's loop. ``prefect_pages/study_tasks.py`` calls
the tasks as the loop submits jobs. Nothing is cached, retried or stored here: the journal is the record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import Parameter, Signature
from typing import Any

from prefect import Flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

TaskBody = Callable[[], Awaitable[State[Any]]]


def tune_flow(study: str, parameters: Mapping[str, Any], body: Callable[[], State[Any]]) -> Callable[..., Any]:
    """The flow ``tune`` of one study, with the parameters that Prefect shows.

    Args:
        body: drives the study, and returns the final state of its flow run.
    """

    def tune(**_: Any) -> State[Any]:
        return body()

    # Prefect shows parameters by the names of the signature
    names = [Parameter(name, Parameter.KEYWORD_ONLY) for name in parameters]
    tune.__signature__ = Signature(names)  # type: ignore[attr-defined]
    # by this name Prefect counts the calls within a flow run; two threads that count at once may share a number
    tune.__qualname__ = f"tune-{study.replace('.', '-')}"
    made = Flow(tune, name="tune", validate_parameters=False, persist_result=False, retries=0)
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
