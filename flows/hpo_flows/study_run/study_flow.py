"""A study as a Prefect flow: Prefect runs, Dask trains, the journal decides.

One flow run is one controller of a study, whoever starts it: a command, ``hpo.tune`` in a script, a notebook or
somebody's flow, or a deployment. Within it Prefect's engine runs a task for each rung or generation, and in that a task
for each job (``prefect_pages/study_tasks.py``). The work of a job goes to Dask. Nothing of Prefect is read to decide
anything but an interrupt: what becomes of the search is in the journal.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.states import Cancelled

from hpo_core.execution.executor import Executor
from hpo_core.execution.hopping.hopping_executor import HoppingExecutor
from hpo_core.execution.loop import Observer
from hpo_core.journal.sql import open_journal
from hpo_core.model.errors import HpoError
from hpo_core.security.masking import mask_logs, masked_errors
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.views.hop_views import PartitionNames
from hpo_flows.prefect_api.api_watch import api_is_unreachable, wait_for_return, wait_no_more
from hpo_flows.prefect_pages.flow_states import end_state, failed, shown_parameters, tags_of
from hpo_flows.prefect_pages.read_back import set_differing
from hpo_flows.prefect_pages.shown_runs import ShownRun, end_task_runs, report_killed_runs
from hpo_flows.prefect_pages.study_pages import StudyPages
from hpo_flows.prefect_pages.study_tasks import JOB_GRAIN_LIMIT, StudyTasks, full_groups, is_per_rung
from hpo_flows.study_run.session import Session, Summary

log = logging.getLogger("hpo.prefect")
LAST_SECONDS = 17.0
"""Longest wait of a study's end for Prefect to show all of it; its last state then takes 3 s at most."""
INTERRUPTED_SECONDS = 3.0
"""The same after an interrupt: whoever interrupts waits."""


class RunCancelledError(KeyboardInterrupt):
    """Somebody cancelled or paused the flow run in which a study is driven; the study was halted, as by Ctrl-C."""


def run_study(
    session: Session,
    action: str,
    *,
    cure: Callable[[Study], str],
    ended: Callable[[Study, Summary], None] = lambda study, summary: None,
    noted: tuple[Path, str] | None = None,
    after: Any = None,
) -> None:
    """Drive a session's study in a flow run of its own, below the present one if there is any.

    Args:
        action: begins the name of the flow run: tune, resume, extend or rerun.
        cure: words about a study that gave up, or has no result.
        ended: called once the study has ended by itself, before Prefect is waited for.
        noted: where flow runs of this home are noted, and which Prefect this is (``shown_runs.py``): the next one ends
            those whose process was killed.
        after: the result of a task of the present flow run that Prefect's graph shows the study to follow from.

    Raises:
        BaseException: what ended the study early; that of Prefect is a warning, for the study needs none of it.
    """
    raised: list[BaseException] = []
    is_over = False
    in_main_thread = threading.current_thread() is threading.main_thread()
    on_sigterm = signal.getsignal(signal.SIGTERM)

    def body() -> State[Any]:
        nonlocal is_over
        if in_main_thread:  # Prefect's engine has put its own in place, after which a run ends as Crashed
            signal.signal(signal.SIGTERM, on_sigterm)
        note = None if noted is None else _note_run(*noted)
        try:
            study = drive(session, action, ended=ended, heeds_runs=True)
            return end_state(study, failed, cure(study))
        except Exception as error:  # of the training function, with its traceback as a note
            raised.append(error)
            kind = "" if isinstance(error, HpoError) else f"{type(error).__name__}: "
            return failed("\n".join([f"{kind}{error}", *getattr(error, "__notes__", ())]))
        except BaseException as error:
            if isinstance(error, Pause):  # the process of a command ends; nobody could go on with its run
                error = RunCancelledError()
            raised.append(error)
            how = "with its flow run" if isinstance(error, RunCancelledError) else "by an interrupt"
            name = session.name
            go_on = f"`hpo resume {name}`, in Python hpo.resume({name!r}), goes on"
            return Cancelled(message=f"Study {name!r} was halted {how}; {go_on}.")
        finally:
            is_over = True
            if note is not None:
                note.ended()

    try:
        made = flow_of(session.spec, body)
        made(**shown_parameters(session.spec), return_state=True, wait_for=None if after is None else [after])
    except Exception as error:
        if not is_over:  # its flow run could not be made
            if is_in_flow_run() or isinstance(error, HpoError):
                raise
            session.say(f"Prefect does not run this study, which goes on ({type(error).__name__}: {error}).")
            ended(*session.run())
            return
        if not api_is_unreachable():  # else it was said
            session.say(f"Prefect does not show how this study ended ({type(error).__name__}: {error}).")
    if raised:
        raise raised[0]


def _note_run(folder: Path, server: str) -> ShownRun:
    with get_client(sync_client=True) as client:
        for run in report_killed_runs(client, folder, server):
            end_task_runs(client, run)
    return ShownRun(folder, UUID(str(flow_run.id)), server)


def flow_of(spec: StudySpec, body: Callable[[], Any]) -> Flow[..., Any]:

    def tune(**_: Any) -> Any:
        return body()

    # Prefect shows parameters by the names of the signature
    names = [Parameter(name, Parameter.KEYWORD_ONLY) for name in shown_parameters(spec)]
    tune.__signature__ = Signature(names)  # type: ignore[attr-defined]
    # by this name Prefect counts the calls within a flow run; two threads that count at once may share a number
    tune.__qualname__ = f"tune-{spec.study.replace('.', '-')}"
    return Flow(tune, name="tune", validate_parameters=False, persist_result=False, retries=0)


@masked_errors()
def drive(
    session: Session,
    action: str,
    *,
    ended: Callable[[Study, Summary], None] = lambda study, summary: None,
    heeds_runs: bool = False,
    on_state: Callable[[SyncPrefectClient, State[Any]], None] | None = None,
) -> Study:
    """Drive a session's study inside the present flow run: rungs and jobs are its tasks.

    Args:
        ended: called once the study has ended by itself, before Prefect is waited for.
        heeds_runs: whether the drive ends once this flow run, or one that it is part of, is cancelled. For a run of a
            deployment, its worker sees to that.
        on_state: told the flow run's state every two seconds, while the API answers; from a thread.

    Raises:
        RunCancelledError: with ``heeds_runs``.
        Pause: the flow run was paused; the study was halted, as by an interrupt.
    """
    mask_logs()
    run, earlier = label_run(session.spec, action)
    pages = PagesThread(session, run, heeds_runs=heeds_runs, on_state=on_state)
    tasks: list[StudyTasks] = []

    def wrap(study: Study, executor: Executor) -> Executor:
        made = StudyTasks(
            executor,
            study.spec.metric.name,
            per_job=not is_per_rung(study.spec, study.state.extra_configs),
            tags=study.spec.prefect.tags,
            full=partial(full_groups, study),
            partitions=PartitionNames.of(study.spec),
        )
        tasks.append(made)
        session.executor.show_in(str(run), f"{action}-{study.name}")
        if isinstance(executor, HoppingExecutor) and (study.spec.search.outline().max_resource or 0) <= JOB_GRAIN_LIMIT:
            executor.on_unit = made.note_epoch
        return made

    session.wrap = wrap
    session.add_observer(pages.begin)
    seconds = INTERRUPTED_SECONDS
    try:
        study, summary = session.run()
        seconds = LAST_SECONDS
        ended(study, summary)
        pages.links = summary.links
        if warning := session.trackers.finish():
            get_run_logger().warning(warning)
        return study
    finally:
        session.wait_for("showing its end in Prefect")
        if not _show_end(tasks, pages, run, earlier, time.monotonic() + seconds):
            wait_no_more()
            session.say("Prefect does not show all of this study: its API does not answer. The journal has it.")


def _show_end(tasks: list[StudyTasks], pages: PagesThread, run: UUID, earlier: set[UUID], deadline: float) -> bool:
    # End the tasks, and have Prefect show all of a study; returns whether it does.
    pages.close()
    for each in tasks:
        each.close(max(0.0, deadline - time.monotonic()))
    try:
        with get_client(sync_client=True) as client:
            return (
                wait_for_return(deadline)
                and all(set_differing(client, run, each.begun, deadline=deadline, earlier=earlier) for each in tasks)
                and pages.finish(deadline)
            )
    except Exception as error:  # the API went away at this moment
        log.debug("the end of the study is not shown: %s: %s", type(error).__name__, error)
        return False


class PagesThread(Observer):
    """Shows how a study goes on in the present flow run, in a thread of its own, and heeds what becomes of the run."""

    def __init__(
        self,
        session: Session,
        run: UUID,
        *,
        heeds_runs: bool,
        on_state: Callable[[SyncPrefectClient, State[Any]], None] | None = None,
    ) -> None:
        self._session = session
        self._told = on_state
        self._run = run
        self._heeds_runs = heeds_runs
        self._above: list[UUID] | None = None
        self._cancelled = False
        self._suspended: State[Any] | None = None
        self._ended = threading.Event()
        self._study: Study | None = None
        self._pages: StudyPages | None = None
        self._thread: threading.Thread | None = None
        self.links: Mapping[str, str] = {}
        """Links to what belongs to the study, by title: shown at its end."""

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
        if state.is_paused() and state.state_details.pause_timeout is not None:
            # else Prefect calls the run Failed once that time is over, whatever its dialog promises
            state = state.model_copy(deep=True)
            state.state_details.pause_timeout = None
            state.message = f"Study {self._session.name!r} is halted until this run, or `hpo resume`, goes on with it."
            client.set_flow_run_state(self._run, state, force=True)
        self._heed(state)
        if self._told is not None:
            self._told(client, state)
        if self._heeds_runs:
            if self._above is None:
                self._above = runs_above(client, self._run)
            for run in self._above:
                if (found := client.read_flow_run(run).state) is not None:
                    self._heed(found)

    def _heed(self, state: State[Any]) -> None:
        if state.is_paused():
            self._suspended = state
        elif self._heeds_runs and (state.is_cancelling() or state.is_cancelled()):
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

    def finish(self, deadline: float) -> bool:
        """Wait until all is shown; returns whether it is."""
        if self._thread is None or self._pages is None:
            return True
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            return False
        self._pages.finish(self.links)
        return True


def is_in_flow_run() -> bool:
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def runs_above(client: SyncPrefectClient, run: UUID) -> list[UUID]:
    """The flow runs that a flow run is part of, the nearest first."""
    found: list[UUID] = []
    while (task_run := client.read_flow_run(run).parent_task_run_id) is not None:
        above = client.read_task_run(task_run).flow_run_id
        if above is None or above in found:
            break
        found.append(run := above)
    return found


def label_run(spec: StudySpec, action: str) -> tuple[UUID, set[UUID]]:
    """Name the present flow run ``ACTION-STUDY`` and tag it with study and method.

    Returns:
        Its id, and the task runs that it has from an earlier attempt; those that look open end as Crashed.
    """
    run = UUID(str(flow_run.id))
    tags = list(dict.fromkeys([*flow_run.tags, *tags_of(spec)]))
    with get_client(sync_client=True) as client:
        client.update_flow_run(run, name=f"{action}-{spec.study}", tags=tags)
        return run, end_task_runs(client, run)
