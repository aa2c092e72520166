"""A flow with a form, and how its run says that it failed."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, get_type_hints

from prefect import Flow
from prefect.exceptions import FailedRun
from prefect.runtime import deployment

from hpo_core.model.errors import HpoError
from hpo_core.security.masking import masked_errors
from hpo_flows.deployed.flow_run_heartbeats import end_with_parent
from hpo_flows.deployed.form import Form
from hpo_flows.deployed.form_schema import form_parameters
from hpo_flows.prefect_pages.flow_states import failed


def form_flow(
    name: str, run_name: Callable[[], str] | None = None
) -> Callable[[Callable[[Form], Any]], Flow[..., Any]]:
    """Decorator: a flow with the parameters that the form, its function's only argument, has as fields.

    A run's parameters are checked by the form, which says what is wrong. An error that says what is wrong becomes the
    state Failed with its words. Prefect would put its class before it and a traceback into the run's log, which says
    nothing to whoever filled in a form. Any other error is a mistake of this program and keeps its traceback.
    """

    def decorate(function: Callable[[Form], Any]) -> Flow[..., Any]:
        form: type[Form] = next(iter(get_type_hints(function).values()))
        drawn = form_parameters(form.form())
        kind = Parameter.POSITIONAL_OR_KEYWORD
        names = [*drawn.parameters, *(name for name in form.settings()["properties"] if name not in drawn.parameters)]
        signature = Signature([Parameter(name, kind, default=None, annotation=Any) for name in names])

        @wraps(function)
        def run(*values: Any, **named: Any) -> Any:  # Prefect hands in either
            parameters = signature.bind(*values, **named).arguments
            if deployment.id is not None:  # as by an interrupt, once the worker that started it is gone
                end_with_parent(signal.SIGTERM)
            logging.getLogger("prefect.flow_runs").addFilter(_is_no_engine_traceback)
            try:
                with masked_errors():  # the form shows the values that it does not take
                    return function(form.read(parameters))
            except HpoError as error:
                if deployment.id is None:
                    raise
                return failed(str(error))

        run.__signature__ = signature  # type: ignore[attr-defined]
        made: Flow[..., Any] = Flow(run, name=name, flow_run_name=run_name, persist_result=False, retries=0)
        made.__signature__ = drawn  # type: ignore[attr-defined]
        return made

    return decorate


def _is_no_engine_traceback(record: logging.LogRecord) -> bool:
    """Not the engine's own traceback of a run that ended as Failed: the state has said why, in the line before."""
    return not (record.exc_info and record.exc_info[0] is FailedRun)
