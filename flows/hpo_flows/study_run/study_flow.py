"""A study as a Prefect flow: Prefect runs, Dask trains, the journal decides.

One flow run is one controller of a study, whoever starts it: a command, ``hpo.tune`` in a script, a notebook or
somebody's flow, or a deployment. Within it Prefect's engine runs a task for each rung or generation, and in that a task
for each job (``prefect_pages/study_tasks.py``). The work of a job goes to Dask. Nothing of Prefect is read to decide
anything but an interrupt: what becomes of the search is in the journal.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, CancelledRun, Pause
from prefect.runtime import flow_run
from prefect.states import Cancelled

from hpo_core.execution.executor import Executor, RunParts
from hpo_core.model.errors import HpoError
from hpo_core.security.masking import mask_logs, masked_errors
from hpo_core.study import Study
from hpo_flows.prefect_api.connection import api_answers, api_is_unreachable, wait_less, wait_no_more
from hpo_flows.prefect_pages.read_back import end_killed_runs, end_task_runs, process_words, set_differing
from hpo_flows.prefect_pages.study_pages import RunCancelledError, StudyPages, runs_above
from hpo_flows.prefect_pages.study_tasks import JOB_GRAIN_LIMIT, StudyTasks, full_groups, is_per_rung
from hpo_flows.prefect_pages.tune_flow import end_state, failed, shown_parameters, tags_of, tune_flow
from hpo_flows.study_run.session import Session

log = logging.getLogger("hpo.prefect")
LAST_SECONDS = 17.0
"""Longest wait of a study's end for Prefect to show all of it; its last state then takes 3 s at most."""
INTERRUPTED_SECONDS = 3.0
"""The same after an interrupt: whoever interrupts waits."""


def run_study(session: Session, *, after: Any = None) -> None:
    """Drive a session's study in a flow run of its own, below the present one if there is any.

    Args:
        after: the result of a task of the present flow run that Prefect's graph shows the study to follow from.

    Raises:
        HpoError: Prefect took no flow run of the study, which did not begin; or of the study.
        BaseException: what else ended the study early, such as Ctrl-C or an exception of the training function.
    """
    ended: list[BaseException | None] = []
    """The error that ended the study, once it has ended; None: it ended by itself."""
    on_sigterm = signal.getsignal(signal.SIGTERM)

    def body() -> State[Any]:
        wait_less()
        with suppress(ValueError):  # Prefect's engine has put its own in the main thread: a run ends as Crashed
            signal.signal(signal.SIGTERM, on_sigterm)
        try:
            study = drive(session, owns_run=True)
            state = end_state(study, session.cure(study))
        except Exception as error:  # of the training function, with its traceback as a note
            ended.append(error)
            kind = "" if isinstance(error, HpoError) else f"{type(error).__name__}: "
            return failed("\n".join([f"{kind}{error}", *getattr(error, "__notes__", ())]))
        except BaseException as error:
            if isinstance(error, Pause):  # the process of a command ends; nobody could go on with its run
                error = RunCancelledError()
            ended.append(error)
            how = "with its flow run" if isinstance(error, RunCancelledError) else "by an interrupt"
            name = session.name
            go_on = f"`hpo resume {name}`, in Python hpo.resume({name!r}), goes on"
            return Cancelled(message=f"Study {name!r} was halted {how}; {go_on}.")
        ended.append(None)
        return state

    try:
        made = tune_flow(f"{session.action}-{session.name}", shown_parameters(session.spec), body)
        made(return_state=True, wait_for=None if after is None else [after])
    except Exception as error:
        if not ended:
            raise HpoError(
                f"Prefect took no flow run of study {session.name!r} ({type(error).__name__}: {error}). Mend that, or "
                "run the study without Prefect: --no-prefect, or prefect: off."
            ) from error
        if not api_is_unreachable():  # else it was said
            session.say(f"Prefect does not show how this study ended ({type(error).__name__}: {error}).")
    for early in filter(None, ended):
        raise early


def run_as_subflow(session: Session) -> None:
    """Drive a session's study in a subflow of the flow run, or of that of the task, which calls.

    Raises:
        CancelledRun: the subflow was cancelled; the study is halted and can go on.
        Abort: likewise, where a flow run that it is part of was cancelled and no runner of Prefect ends that.
    """
    try:
        run_study(session)
    except RunCancelledError:
        name = session.name
        words = (
            f"Study {name!r} was halted with its flow run; hpo.resume({name!r}), or the call with resume=True, goes on."
        )
        raise (Abort(words) if _end_cancelled_runs() else CancelledRun(words)) from None


def _end_cancelled_runs() -> bool:
    # Have the flow runs here that are being cancelled end as Cancelled, where no runner sees to that; whether any did.
    # These are the present flow run and those that it is part of.
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


@masked_errors()
def drive(session: Session, *, owns_run: bool = False) -> Study:
    """Drive a session's study inside the present flow run: rungs and jobs are its tasks.

    Args:
        owns_run: whether the flow run is of this process: the drive ends once it, or one that it is part of, is
            cancelled, and the next study of this home ends it as Crashed if this process is killed. To a run of a
            deployment its worker and Prefect see.

    Raises:
        RunCancelledError: with ``owns_run``.
        Pause: the flow run was paused; the study was halted, as by an interrupt.
    """
    mask_logs()
    run, earlier = label_run(session, owns_run=owns_run)
    tasks: list[StudyTasks] = []
    pages: list[StudyPages] = []

    def show(study: Study) -> StudyPages:
        pages.append(StudyPages(study, flow_run=run, say=session.say, heeds_runs=owns_run))
        return pages[-1].start()

    def wrap(study: Study, parts: RunParts) -> Executor:
        made = StudyTasks(
            parts.executor,
            study.spec.metric.name,
            per_job=not is_per_rung(study),
            tags=study.spec.prefect.tags,
            full=partial(full_groups, study),
        )
        tasks.append(made)
        session.executor.show_in(str(run), f"{session.action}-{study.name}")
        if parts.on_unit is not None and (study.spec.search.outline().max_resource or 0) <= JOB_GRAIN_LIMIT:
            parts.on_unit(made.note_epoch)
        return made

    session.wrap = wrap
    session.add_observer(show)
    seconds, links = INTERRUPTED_SECONDS, dict[str, str]()
    try:
        study, summary = session.run()
        seconds = LAST_SECONDS
        session.ended(study, summary)
        links = summary.links
        return study
    finally:
        session.wait_for("showing its end in Prefect")
        deadline = time.monotonic() + seconds
        for each in tasks:
            each.close(max(0.0, deadline - time.monotonic()))
        begun = [one for each in tasks for one in each.begun]
        is_shown = False
        with suppress(Exception), get_client(sync_client=True) as client:  # of an API that went away at this moment
            is_shown = (
                all(each.finish(deadline, links) for each in pages)
                and api_answers()
                and set_differing(client, run, begun, deadline=deadline, earlier=earlier)
            )
        if not is_shown:
            wait_no_more()
            session.say("Prefect does not show all of this study: its API does not answer. The journal has it.")


def label_run(session: Session, *, owns_run: bool) -> tuple[UUID, set[UUID]]:
    """Name the present flow run ``ACTION-STUDY`` and tag it with study and method.

    Returns:
        Its id, and the task runs that it has from an earlier attempt; those that look open end as Crashed.
    """
    run, home = UUID(str(flow_run.id)), session.home.folder
    tags = list(dict.fromkeys([*flow_run.tags, *tags_of(session.spec)]))
    with get_client(sync_client=True) as client:
        end_killed_runs(client, home)
        process = process_words(home) if owns_run else None
        client.update_flow_run(run, name=f"{session.action}-{session.name}", tags=tags, infrastructure_pid=process)
        return run, end_task_runs(client, run)
