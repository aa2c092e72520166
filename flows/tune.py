"""The flow that runs a study: Prefect wraps, Dask carries, a child process trains."""

from typing import Any, Literal

import msgspec
from prefect import flow, get_run_logger, tags
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from flows.artifacts import write_artifacts
from flows.cluster import DaskExecutor
from flows.driver import Wrapper
from flows.progress import ResultLines
from flows.session import Session, grain
from flows.tasks import TaskPerJob, TaskPerRung
from hpo_core.home import Home
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.trial import Job, Report

_prepared: dict[str, Session] = {}
"""Sessions whose cluster the command line started already, while the Prefect API was coming up."""


class DecisionLog:
    """One line per decision in the flow run's log."""

    def __init__(self, study: Study) -> None:
        self._lines = ResultLines(study)
        self._logger = get_run_logger()

    def told(self, report: Report, granted: list[Job]) -> None:
        self._logger.info(self._lines.line(report, granted))
        self.tick()

    def tick(self) -> None:
        """A stop rule may end the study between two reports."""
        if news := self._lines.news():
            self._logger.warning(news)

    def close(self) -> None:
        """Nothing is open."""


def _wrapper(study: Study, executor: DaskExecutor) -> Wrapper:
    kind = TaskPerJob if grain(study.spec, study.state.extra_configs) == "job" else TaskPerRung
    return kind(executor, study.spec.metric.name)


@flow(
    name="tune",
    flow_run_name="{action}-{study}",
    task_runner=ThreadPoolTaskRunner(max_workers=1024),  # type: ignore[arg-type]
    persist_result=False,
    validate_parameters=False,
)
def tune(
    study: str,
    action: Literal["tune", "resume", "extend", "rerun"] = "tune",
    spec: dict[str, Any] | None = None,
    extend: int = 0,
    force: bool = False,
    home: str | None = None,
    journal: str | None = None,
) -> dict[str, Any]:
    """Run or go on with a study.

    Args:
        study: Name of the study.
        action: What is being done; shown in the name of the flow run.
        spec: The study's description, for a new one.
        extend: Further configurations to ask for.
        force: Take over from a controller that seems alive.
        home: Folder of journal, checkpoints and reports.
        journal: URL of the journal, where it is not in the home folder.
    """
    prepared = _prepared.pop(study, None)
    session = prepared or Session(
        Home(home, journal),
        study,
        spec=StudySpec.from_plain(spec) if spec else None,
        force=force,
        extend=extend,
    )
    try:
        session.add_observer(DecisionLog)
        with tags("hpo", study):
            opened, summary = session.run(_wrapper)
        write_artifacts(opened, summary.links)
        if prepared is None and (warning := session.finish_tracking()):
            get_run_logger().warning(warning)
    finally:
        if prepared is None:
            session.close()
    plain: dict[str, Any] = msgspec.to_builtins(summary)
    return plain | {"flow_run": str(flow_run.id)}


def run_prepared(session: Session, **parameters: Any) -> dict[str, Any]:
    """Run the flow in this process with a session that is being started already."""
    _prepared[session.name] = session
    try:
        result: dict[str, Any] = tune(study=session.name, **parameters)
    finally:
        _prepared.pop(session.name, None)
    return result
