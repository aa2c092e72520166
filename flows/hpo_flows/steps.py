"""Steps of a flow: tasks that Prefect's engine runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prefect import Task, get_run_logger
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.states import Completed, Failed

from hpo_core.model.errors import HpoError
from hpo_core.security.masking import masked, masked_errors
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.tracking.mlflow_client import errors_without_credentials

P = ParamSpec("P")
Value = TypeVar("Value")


def step(name: str) -> Callable[[Callable[P, tuple[Value, str]]], Callable[P, Value]]:
    """Decorator: the function becomes a task, whose state's message says what it found.

    The function returns a value and these words. The task has no tags, cache, retries or stored result.

    Args:
        name: of the task run; ``{parameter}`` stands for a parameter of the function.
    """

    def decorate(function: Callable[P, tuple[Value, str]]) -> Callable[P, Value]:
        @wraps(function)
        def body(*values: P.args, **named: P.kwargs) -> State[Value]:
            try:
                with masked_errors(), errors_without_credentials():
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
