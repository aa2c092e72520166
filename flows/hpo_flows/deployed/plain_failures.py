"""Failures of deployed runs in words: the state's message is the sentence that helps, with no traceback before it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prefect.exceptions import FailedRun
from prefect.runtime import deployment

from hpo_core.model.errors import HpoError
from hpo_core.security.untrusted_text import terminal_text
from hpo_flows.study_run.flow_run import failed_state, tell_first

P = ParamSpec("P")
R = TypeVar("R")


def failing_in_words(within: Callable[[], bool] = lambda: False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a flow: an error that says what is wrong becomes the state Failed with its words.

    Prefect would put its class before it and a traceback into the run's log, which says nothing to whoever filled in a
    form. Any other error is a mistake of this program and keeps its traceback.

    Args:
        within: whether the flow was called by a flow or command of ours, which handles errors itself.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*arguments: P.args, **parameters: P.kwargs) -> R:
            logging.getLogger("prefect.flow_runs").addFilter(_is_news)
            try:
                return function(*arguments, **parameters)
            except Exception as error:
                if within() or deployment.id is None:
                    raise
                if not isinstance(error, HpoError):
                    tell_first(f"{type(error).__name__}: {terminal_text(str(error), lines=True)}")
                    raise
                state: Any = failed_state(str(error))
                return state  # type: ignore[no-any-return]

        return run

    return decorate


def _is_news(record: logging.LogRecord) -> bool:
    """Not the engine's own traceback of a run that ended as Failed: the state has said why, in the line before."""
    return not (record.exc_info and record.exc_info[0] is FailedRun)
