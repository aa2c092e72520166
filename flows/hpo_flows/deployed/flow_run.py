"""A study driven inside a Prefect flow run, deployed or the user's own, and how such a run says that it failed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, get_type_hints
from uuid import UUID

from prefect import Flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, CancelledRun, FailedRun
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Running

from hpo_core.model.errors import HpoError
from hpo_core.security.masking import masked_errors
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.study import Study
from hpo_core.views.failure_reasons import cure_in_python
from hpo_flows.deployed.flow_run_heartbeats import NO_HEARTBEAT, end_with_worker
from hpo_flows.deployed.form import Form
from hpo_flows.deployed.form_schema import form_parameters
from hpo_flows.prefect_pages.flow_states import failed, present_run, tell_first
from hpo_flows.study_run import study_flow
from hpo_flows.study_run.session import Session, Summary
from hpo_flows.study_run.study_flow import runs_above


def drive(session: Session, action: str) -> Study:
    """Drive a session's study inside the present flow run of a deployment.

    Args:
        action: begins the name of the flow run.
    """
    end_with_worker()
    run = UUID(str(flow_run.id))
    session.say, session.trackers.say = get_run_logger().warning, get_run_logger().info
    return study_flow.drive(session, action, on_state=lambda client, state: _keep_running(client, run, state))


def _keep_running(client: SyncPrefectClient, run: UUID, state: State[Any]) -> None:
    """Make a run Running again that the automation took for dead.

    The server was away for long, and it took heartbeats that it missed for heartbeats that we did not send.
    """
    if state.is_crashed() and state.message == NO_HEARTBEAT:
        client.set_flow_run_state(run, Running(), force=True)


def run_as_subflow(session: Session, action: str, ended: Callable[[Study, Summary], None]) -> None:
    """Drive a session's study in a subflow of the flow run, or of that of the task, which calls; closes the session.

    Args:
        ended: called once the study has ended by itself, before Prefect is waited for.

    Raises:
        CancelledRun: the subflow was cancelled; the study is halted and can go on.
        Abort: likewise, where a flow run that it is part of was cancelled and no runner of Prefect ends that.
    """
    try:
        session.start_cluster()
        session.say, session.trackers.say = get_run_logger().warning, get_run_logger().info
        study_flow.run_study(session, action, cure=cure_in_python, ended=ended)
    except study_flow.RunCancelledError:
        name = session.name
        words = (
            f"Study {name!r} was halted with its flow run; hpo.resume({name!r}), or the call with resume=True, goes on."
        )
        raise (Abort(words) if _end_cancelled_runs() else CancelledRun(words)) from None
    finally:
        session.close()


def _end_cancelled_runs() -> bool:
    """Have the flow runs here that are being cancelled end as Cancelled, where no runner sees to that; whether any did.

    These are the present flow run and those that it is part of.
    """
    found = False
    if "PREFECT__FLOW_RUN_ID" not in os.environ:
        with get_client(sync_client=True) as client:
            present = UUID(str(flow_run.id))
            for run in [present, *runs_above(client, present)]:
                state = client.read_flow_run(run).state
                if state is not None and state.is_cancelling():
                    client.set_flow_run_state(run, Cancelled(message=state.message), force=True)
                found = found or (state is not None and (state.is_cancelling() or state.is_cancelled()))
    return found


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
            logging.getLogger("prefect.flow_runs").addFilter(_is_no_engine_traceback)
            try:
                with masked_errors():  # the form shows the values that it does not take
                    return function(form.read(parameters))
            except Exception as error:
                if deployment.id is None:
                    raise
                if not isinstance(error, HpoError):
                    tell_first(f"{type(error).__name__}: {terminal_text(str(error), lines=True)}", *present_run())
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
