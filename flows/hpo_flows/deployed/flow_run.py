"""A study driven inside a Prefect flow run, deployed or the user's own, and how such a run says that it failed."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from datetime import UTC, datetime
from functools import wraps
from typing import Any, get_type_hints
from uuid import UUID

import psutil
from prefect import Flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import Abort, CancelledRun, FailedRun, Pause
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Running

from hpo_core.execution.loop import Observer
from hpo_core.home import Home
from hpo_core.journal.sql import open_journal
from hpo_core.model.errors import HpoError
from hpo_core.security.masking import mask_logs, masked_errors
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.views.failure_reasons import cure_in_python
from hpo_flows.deployed.flow_run_heartbeats import NO_HEARTBEAT, begin_heartbeats, end_with_worker
from hpo_flows.deployed.form import Form, read_form
from hpo_flows.deployed.form_schema import drawn_signature, run_signature
from hpo_flows.prefect_api.api_watch import (
    PATIENT_SECONDS,
    RETURN_SECONDS,
    api_is_unreachable,
    end_process_soon,
    wait_for_return,
)
from hpo_flows.prefect_pages.prefect_process import tags_of
from hpo_flows.prefect_pages.study_pages import StudyPages, end_state, failed_state, run_in_flow, tell_first
from hpo_flows.study_run.session import Session

LAST_PAGES_SECONDS = 20.0
"""How long the end of a flow run waits for its pages."""


class RunCancelledError(BaseException):
    """Somebody cancelled the flow run in which a study is driven; the study was halted, as by an interrupt."""


class PagesThread(Observer):
    """Shows its study in the present flow run, and ends the drive once somebody suspended the run.

    Args:
        heeds_callers: the drive ends as well once this run, or a flow run that it is part of, is cancelled or
            suspended. For a run of its own process, its worker sees to that.
    """

    def __init__(self, session: Session, run: UUID, *, heeds_callers: bool = False) -> None:
        self._session = session
        self._run = run
        self._heeds_callers = heeds_callers
        self._above: list[UUID] | None = None
        self._cancelled = False
        self._ended = threading.Event()
        self._suspended: State[Any] | None = None
        self._study: Study | None = None
        self._pages: StudyPages | None = None
        self._thread: threading.Thread | None = None

    def begin(self, study: Study) -> PagesThread:
        """Begin, in a thread, with what the study records next."""
        url = self._session.journal_url
        self._study = study
        self._pages = StudyPages(
            study.name,
            lambda: open_journal(url, reading=True),
            flow_run=self._run,
            start=study.seq,
            began=time.time(),
            ended=self._ended,
            say=self._session.say,
            on_state=self._on_state,
        )
        # of the flow run's context, which has the settings of its Prefect
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._pages.follow,), name="prefect-pages", daemon=True
        )
        self._thread.start()
        return self

    def _on_state(self, client: SyncPrefectClient, state: State[Any]) -> None:
        self._heed(state)
        if self._heeds_callers:
            if self._above is None:
                self._above = _runs_above(client, self._run)
            for run in self._above:
                if (found := client.read_flow_run(run).state) is not None:
                    self._heed(found)
        if state.is_crashed() and state.message == NO_HEARTBEAT:
            # the server was away for long, and took heartbeats it missed for heartbeats we did not send
            client.set_flow_run_state(self._run, Running(), force=True)
            attempt = client.read_flow_run(self._run).run_count  # which this has raised
            begin_heartbeats(Home().folder, self._run, attempt)

    def _heed(self, state: State[Any]) -> None:
        if state.is_paused():
            self._suspended = state
        elif self._heeds_callers and (state.is_cancelling() or state.is_cancelled()):
            self._cancelled = True

    def on_tick(self) -> None:
        """Raise Pause or RunCancelledError, which the loop takes as an interrupt, once that is the run's state.

        Not where nothing is left to run: a study that has ended ends its run.
        """
        if self._study is not None and self._study.at_rest and not self._study.state.running:
            return
        if self._cancelled:
            raise RunCancelledError
        if self._suspended is not None:
            raise Pause("suspended", state=self._suspended)

    def close(self) -> None:
        """The controller records no more."""
        self._ended.set()

    def finish(self, links: Mapping[str, str]) -> None:
        """Wait until all is shown, for so long at most, and show where more is to be found."""
        self._ended.set()
        if self._thread is not None and self._pages is not None and not api_is_unreachable():
            self._thread.join(LAST_PAGES_SECONDS)
            if not self._thread.is_alive():
                self._pages.finish(links)


@masked_errors()
def drive(session: Session, action: str, patience: float = RETURN_SECONDS, *, is_callers: bool = False) -> Study:
    """Drive a session's study inside the present flow run, and show it there.

    Args:
        action: begins the name of the flow run.
        patience: seconds that the end of the study waits for an API that does not answer.
        is_callers: the process belongs to a flow of the user's, which goes on afterwards: it is not ended where the API
            does not answer, and the drive ends with the flow runs that it is part of.

    Raises:
        RunCancelledError: with ``is_callers``, where one of these flow runs was cancelled.
    """
    end_with_worker()
    mask_logs()
    pages = PagesThread(session, label_run(session.spec, action), heeds_callers=is_callers)
    session.say, session.trackers.say = get_run_logger().warning, get_run_logger().info
    session.add_observer(pages.begin)
    try:
        study, summary = session.run()
    except BaseException as error:
        pages.finish({})
        if api_is_unreachable() and not is_callers:
            end_process_soon(130 if isinstance(error, KeyboardInterrupt) else 1)
        raise
    if wait_for_return(patience, or_end=not is_callers):
        pages.finish(summary.links)
    if warning := session.trackers.finish():
        get_run_logger().warning(warning)
    return study


def is_in_flow_run() -> bool:
    """Whether the caller runs in a Prefect flow or task."""
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def drive_as_subflow(session: Session, action: str) -> None:
    """Drive a session's study in a subflow of the flow run, or of that of the task, which calls; closes the session.

    Raises:
        HpoError: the study gave up, or has no result.
        Exception: that of the training function, see ``fail_fast`` of :func:`hpo_core.tune`.
        CancelledRun: the subflow was cancelled; the study is halted and can go on.
        Abort: likewise, where a flow run that it is part of was cancelled and no runner of Prefect ends that.
    """
    raised: list[BaseException] = []

    def body() -> State[Any]:
        try:
            study = drive(session, action, PATIENT_SECONDS, is_callers=True)
            return end_state(study, failed, cure_in_python(study))
        except RunCancelledError:
            words = f"Study {session.name!r} was halted with its flow run; {_go_on(session.name)}"
            raised.append(Abort(words) if _end_cancelled_runs() else CancelledRun(words))
            return Cancelled(message=words)
        except Exception as error:  # of the training function, with its traceback as a note
            raised.append(error)
            kind = "" if isinstance(error, HpoError) else f"{type(error).__name__}: "
            return failed("\n".join([f"{kind}{error}", *getattr(error, "__notes__", ())]))

    try:
        session.start_cluster()
        ended = run_in_flow(session.spec, body)
    finally:
        session.close()
    if raised:
        raise raised[0]
    if not ended.is_completed():
        raise HpoError(ended.message or f"Study {session.name!r} ended as {ended.name}.")


def _go_on(name: str) -> str:
    return f"hpo.resume({name!r}), or the call with resume=True, goes on."


def _end_cancelled_runs() -> bool:
    """Have flow runs above that are being cancelled end as Cancelled, where no runner sees to that; whether any did."""
    found = False
    if "PREFECT__FLOW_RUN_ID" not in os.environ:
        with get_client(sync_client=True) as client:
            for run in _runs_above(client, UUID(str(flow_run.id))):
                state = client.read_flow_run(run).state
                if state is not None and state.is_cancelling():
                    client.set_flow_run_state(run, Cancelled(message=state.message), force=True)
                found = found or (state is not None and (state.is_cancelling() or state.is_cancelled()))
    return found


def _runs_above(client: SyncPrefectClient, run: UUID) -> list[UUID]:
    """The flow runs that a flow run is part of, the nearest first."""
    found: list[UUID] = []
    while (task_run := client.read_flow_run(run).parent_task_run_id) is not None:
        above = client.read_task_run(task_run).flow_run_id
        if above is None:
            break
        found.append(run := above)
    return found


def label_run(spec: StudySpec, action: str) -> UUID:
    """Name the present flow run ``ACTION-STUDY`` and tag it with study and method; returns its id."""
    run = UUID(str(flow_run.id))
    tags = list(dict.fromkeys([*flow_run.tags, *tags_of(spec)]))
    with get_client(sync_client=True) as client:
        client.update_flow_run(run, name=f"{action}-{spec.study}", tags=tags)
    return run


def failed(message: str) -> State[Any]:
    """The state Failed of the present flow run, whose log begins with these words."""
    return failed_state(message, *_present_run())


def _present_run() -> tuple[UUID | None, datetime]:
    """The flow run, and when its process began."""
    began = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    return (None if flow_run.id is None else UUID(flow_run.id)), began


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
        signature = run_signature(form)

        @wraps(function)
        def run(*values: Any, **named: Any) -> Any:  # Prefect hands in either
            parameters = signature.bind(*values, **named).arguments
            logging.getLogger("prefect.flow_runs").addFilter(_is_no_engine_traceback)
            try:
                with masked_errors():  # the form shows the values that it does not take
                    return function(read_form(form, parameters))
            except Exception as error:
                if deployment.id is None:
                    raise
                if not isinstance(error, HpoError):
                    tell_first(f"{type(error).__name__}: {terminal_text(str(error), lines=True)}", *_present_run())
                    raise
                return failed(str(error))

        run.__signature__ = signature  # type: ignore[attr-defined]
        made: Flow[..., Any] = Flow(run, name=name, flow_run_name=run_name, persist_result=False, retries=0)
        made.__signature__ = drawn_signature(form)  # type: ignore[attr-defined]
        return made

    return decorate


def _is_no_engine_traceback(record: logging.LogRecord) -> bool:
    """Not the engine's own traceback of a run that ended as Failed: the state has said why, in the line before."""
    return not (record.exc_info and record.exc_info[0] is FailedRun)
