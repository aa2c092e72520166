"""A study inside a Prefect flow run: Prefect wraps, Dask carries, a child process trains."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psutil
from prefect import get_run_logger, tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import LogCreate
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed

from hpo_core.execution.dispatch import Dispatcher
from hpo_core.execution.executor import Executor
from hpo_core.model.trial import Job, Report
from hpo_core.pool.words import standing_of
from hpo_core.security.masking import mask_logs, masked, masked_errors
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.views.hop_views import PartitionNames
from hpo_core.views.summary import notices_of
from hpo_flows.liveness.api_watch import (
    RETURN_SECONDS,
    ApiWatch,
    api_is_unreachable,
    end_process_soon,
    wait_for_return,
)
from hpo_flows.liveness.parent_watch import end_with_worker
from hpo_flows.study_run.live_progress import ResultLines
from hpo_flows.study_run.prefect_artifacts import StudyArtifacts
from hpo_flows.study_run.session import ObserverFactory, Session, Summary, grain
from hpo_flows.study_run.tasks import TaskDispatcher, TaskPerJob, TaskPerRung, TaskRuns


class DecisionLog:
    """One line per decision in the flow run's log."""

    def __init__(self, study: Study) -> None:
        self._lines = ResultLines(study)
        self._logger = get_run_logger()
        for notice in notices_of(study):
            self._logger.warning(notice)

    def on_report(self, report: Report, granted: list[Job]) -> None:
        self._logger.info(self._lines.line(report, granted))
        self.on_tick()

    def on_tick(self) -> None:
        """A stop rule may end the study between two reports."""
        if news := self._lines.news():
            self._logger.warning(news)

    def close(self) -> None:
        """Nothing is open."""


def task_runs_of(study: Study, clock: Callable[[], float] | None = None) -> TaskRuns:
    """What shows a study's jobs in the grain that it has.

    Args:
        clock: tells the time of what is shown; None: it is shown when it happens.
    """
    kind = TaskPerJob if grain(study.spec, study.state.extra_configs) == "job" else TaskPerRung
    return kind(study.spec.metric.name, clock, partitions=PartitionNames.of(study.spec))


def pool_words_of(session: Session) -> Callable[[], str] | None:
    """What tells how a session's study stands in its pool; None: it shares no slots."""
    seat = session.seat
    return None if seat is None else lambda: standing_of(seat.row, seat.others).words


def _dispatcher(study: Study, executor: Executor) -> Dispatcher:
    return TaskDispatcher(executor, task_runs_of(study))


def label_run(spec: StudySpec, action: str) -> UUID:
    """Name the present flow run ``ACTION-STUDY`` and tag it with study and method; returns its id.

    A list of runs sorts and filters by them. Prefect's line at the end of each task run is left out of its log.
    """
    run = UUID(str(flow_run.id))
    pool = [] if spec.share is None else [f"pool {spec.share.pool or spec.cluster.place}"]
    labels = dict.fromkeys([*flow_run.tags, "hpo", spec.study, spec.search.method, *pool])
    with get_client(sync_client=True) as client:
        client.update_flow_run(run, name=f"{action}-{spec.study}", tags=list(labels))
    logging.getLogger("prefect.task_runs").addFilter(_is_news)
    return run


def failed_state(message: str) -> State[Any]:
    """The state Failed with these words; :func:`tell_first` tells them, too."""
    words = masked(terminal_text(message, lines=True))
    tell_first(words)
    return Failed(message=words)


def tell_first(reason: str) -> None:
    """Have the log of the present flow run begin with why it failed.

    A run's page opens with its log, the oldest line first; the reason stood below all others, and in the state's
    message, which is a tab away. The line has the time at which this process began, and says when it was written.
    """
    if flow_run.id is None:
        return
    began: Any = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    line = LogCreate(
        name="hpo",
        level=logging.ERROR,
        message=masked(f"Failed, at {datetime.now(UTC):%H:%M:%S} UTC: {reason}"),
        timestamp=began,
        flow_run_id=UUID(flow_run.id),
    )
    try:
        with get_client(sync_client=True) as client:
            client.create_logs([line])
    except Exception as error:  # the state has the reason
        logging.getLogger(__name__).debug("the reason at the top of the log: %s", error)


def _is_news(record: logging.LogRecord) -> bool:
    """Prefect's line at the end of a task run repeats what the decision's own line says."""
    return not (record.levelno <= logging.INFO and str(record.msg).startswith("Finished in state"))


@masked_errors()
def drive(
    session: Session, action: str, *observers: ObserverFactory, patience: float = RETURN_SECONDS
) -> tuple[Study, Summary]:
    """Drive a session's study inside the present flow run, and show it there.

    Every decision is a line of its log.

    Args:
        observers: further ones, after the log and the artifacts.
        patience: seconds that the end of the study waits for an API that does not answer.
    """
    end_with_worker()
    mask_logs()
    run = label_run(session.spec, action)
    session.say = get_run_logger().warning
    shown: list[StudyArtifacts] = []

    def artifacts(study: Study) -> StudyArtifacts:
        shown.append(StudyArtifacts(study, run, session.placed, pool=pool_words_of(session)))
        return shown[-1]

    every: list[ObserverFactory] = [DecisionLog, artifacts, lambda study: ApiWatch(), *observers]
    for make in every:
        session.add_observer(make)
    try:
        with tags("hpo", session.name):
            study, summary = session.run(_dispatcher)
    except BaseException as error:
        if api_is_unreachable():
            end_process_soon(130 if isinstance(error, KeyboardInterrupt) else 1)
        raise
    if wait_for_return(patience):
        shown[-1].finish(summary.links)
    return study, summary
