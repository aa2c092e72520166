"""The flows with a form in the Prefect UI: tune, tune-file, resume, rerun; ``deployments/prefect.yaml`` lists them.

Where journal, checkpoints and reports lie is a setting of the worker (``HPO_HOME``, ``HPO_JOURNAL``), never a
parameter: see ``flows/hpo_flows/deployed/permissions.py``.
"""

from datetime import UTC
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from hpo_core.cli.output import best_line
from hpo_core.home import Home
from hpo_core.journal.damage import damage_named
from hpo_core.journal.protocol import Owner
from hpo_core.model.errors import HpoError, SpecError, StudyBusyError, StudyNotFoundError
from hpo_core.replay.rerun import rerun_spec
from hpo_core.security.masking import masked_errors
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.views.extension import extension_of
from hpo_core.views.rung_names import halt_words
from hpo_flows.deployed.form import (
    DEFAULT_METHOD,
    Attempts,
    Choice,
    Cluster,
    Count,
    JournalRetry,
    Limits,
    Method,
    Metric,
    Number,
    Objective,
    Sampler,
    Seed,
    StudyFile,
    StudyName,
    Target,
    TrialNumber,
    filled_in,
    with_changes,
)
from hpo_flows.deployed.permissions import Permits, refuse_relative_places
from hpo_flows.deployed.run_marker import Mark, read_mark, run_of, write_mark
from hpo_flows.deployed.suspend import Suspension
from hpo_flows.session import Session, Summary
from hpo_flows.tune import drive

_METRIC, _LIMITS, _ATTEMPTS = Metric(), Limits(), Attempts()

_settings: dict[str, Any] = {
    "task_runner": ThreadPoolTaskRunner(max_workers=1024),
    "persist_result": False,
    "retries": 0,
}


@flow(name="tune", **_settings)
@masked_errors()
def tune(
    objective: Objective,
    metric: Metric = _METRIC,
    numbers: list[Number] = [],  # noqa: B006
    choices: list[Choice] = [],  # noqa: B006
    method: Method = DEFAULT_METHOD,
    sampler: Sampler = "random",
    limits: Limits = _LIMITS,
    training: Attempts = _ATTEMPTS,
    seed: Seed = 0,
    cluster: Cluster = None,
    experiment: str = "hpo",
    name: StudyName | None = None,
    journal_retry_seconds: JournalRetry = 60.0,
) -> State[Any]:
    """Run a new study, described here, to its end.

    The run's artifacts follow it while it runs; its log has a line per decision. Cancel ends it, Pause and Resume
    (or Retry) go on with the same study.

    Args:
        objective: The training function, package.module:function.
        metric: What is optimized.
        numbers: Hyperparameters that are numbers in a range, a row each.
        choices: Hyperparameters that take one of several values, a row each.
        method: The search method and its budget.
        sampler: Proposes configurations; all but random are Optuna's.
        limits: Rules that end the study before its search does; `resume` goes on with it.
        training: Limits of one attempt, and when a trial is given up.
        seed: All draws and all training seeds follow from it.
        cluster: Where jobs train. None: on two workers of the machine that runs this.
        experiment: MLflow experiment that holds the runs.
        name: Name of the study. None: "study" with date and time.
        journal_retry_seconds: How long a journal that cannot be reached is tried again before the study ends.
    """
    permits = Permits.of_environment()
    run = _this_flow_run()
    described = filled_in(
        permits, objective=objective, metric=metric, numbers=numbers, choices=choices, method=method, sampler=sampler,
        limits=limits, training=training, experiment=experiment, journal_retry_seconds=journal_retry_seconds,
    )  # fmt: skip
    spec = with_changes(described, name or _dated("study", run), permits, seed=seed, cluster=cluster)
    return _begin("tune", run, spec)


@flow(name="tune-file", **_settings)
@masked_errors()
def tune_file(
    file: StudyFile, name: StudyName | None = None, seed: Seed | None = None, cluster: Cluster = None
) -> State[Any]:
    """Run a new study, described by a study file of the deployment, to its end.

    Args:
        file: Everything not given below comes from it.
        name: Name of the study. None: the file's name with date and time.
        seed: All draws and all training seeds follow from it. None: the file's.
        cluster: Where jobs train. None: as the file says.
    """
    permits = Permits.of_environment()
    run = _this_flow_run()
    chosen = name or _dated(_stem(file), run)
    return _begin("tune", run, with_changes(permits.load(file), chosen, permits, seed=seed, cluster=cluster))


@flow(name="resume", **_settings)
@masked_errors()
def resume(
    study: StudyName,
    configs: Count = 0,
    take_over: bool = False,
    to: Target | None = None,
    trial: TrialNumber | None = None,
) -> State[Any]:
    """Go on with a study that was cancelled, halted, or whose flow run crashed; or train its best trial further.

    Args:
        study: Name of the study, as in the name of the run that began it.
        configs: Ask for so many configurations more before going on; once, however often this run is started again.
        take_over: Even if another run seems to drive it still; that one can then write nothing more.
        to: Train one trial further, beyond the search, to so many units of training in all, and do nothing else.
        trial: Which trial that is. None: the best.
    """
    run = _this_flow_run().id
    if to is None and trial is None:
        return _drive(_resumed(study, run, configs, take_over), "resume")
    if to is None or configs:
        raise SpecError(
            "resume: to trains one trial further, and nothing else: give it without configs, and trial only with it."
        )
    return _train_further(study, run, take_over, trial, to)


def _train_further(study: str, run: UUID, take_over: bool, trial: int | None, to: int) -> State[Any]:
    mark = read_mark(_home().study_folder(study), run)
    if mark is not None and mark.train is not None:  # this run was here before
        trial = mark.train[0]
        record = _known(study).state.trials[trial]
        if record.resource >= to:
            return Completed(message=f"trial {trial} is trained to {record.resource} already")
    return _drive(_resumed(study, run, 0, take_over, (trial, to)), "extend")


@flow(name="rerun", **_settings)
@masked_errors()
def rerun(study: StudyName, name: StudyName | None = None, trials: list[TrialNumber] = []) -> State[Any]:  # noqa: B006
    """Train again along a study's recorded grants: same parameters, seeds and promotions.

    Args:
        study: Name of the study to train again.
        name: Name of the new study. None: the old one's with date and time.
        trials: Numbers of the trials to train, with what they went on from; empty: all.
    """
    run = _this_flow_run()
    journal = _home().read_journal()
    try:
        _known(study)
        with damage_named(journal, study):
            spec = rerun_spec(list(journal.entries(study)), name or _dated(study, run), trials=trials)
    finally:
        journal.close()
    return _begin("rerun", run, spec)


def _begin(action: str, run: FlowRun, spec: StudySpec) -> State[Any]:
    """Begin a study, or go on with it where this very flow run began it (suspended, crashed and started again)."""
    home = _home()
    Permits.of_environment().check(spec)
    folder = home.study_folder(spec.study)
    mark = read_mark(folder, run.id)
    if mark is not None and mark.began:
        try:
            return _drive(_resumed(spec.study, run.id, 0, False), action)
        except StudyNotFoundError:
            pass  # it ended between its mark and the study's first entry
    session = Session(home, spec.study, spec=spec)
    write_mark(folder, run.id, Mark(began=True, owner=session.owner))
    return _drive(session, action)


def _resumed(
    study: str, run: UUID, configs: int, take_over: bool, train: tuple[int | None, int] | None = None
) -> Session:
    """Claim a recorded study for a flow run that may have been here before.

    Raises:
        StudyBusyError: somebody else drives it. Only what a former process of this run still holds is taken over
            unasked, and ``take_over`` is heeded the first time: the run may be retried long afterwards.
    """
    home = _home()
    folder = home.study_folder(study)
    known = read_mark(folder, run)
    mark = known or Mark()
    asked = _known(study).state.extra_configs
    target = asked + configs if mark.configs is None else mark.configs
    extend = max(0, target - asked)
    try:
        session = Session(home, study, force=take_over and known is None, extend=extend, train=train)
    except StudyBusyError:
        journal = home.open_journal()
        owner = journal.info(study).owner
        journal.close()
        if owner is None or owner != mark.owner:
            raise StudyBusyError(_busy_words(study, owner, folder)) from None
        session = Session(home, study, force=True, extend=extend, train=train)
    write_mark(folder, run, msgspec.structs.replace(mark, owner=session.owner, configs=target, train=session.train))
    return session


def _busy_words(study: str, owner: Owner | None, folder: Path) -> str:
    if owner is None:
        return f"Study {study!r} was let go at this moment; Retry."
    other = run_of(folder, owner)
    who = f"flow run {other}" if other is not None else "a command, or a deployment of another server"
    return (
        f"Study {study!r} is driven by {who} (process {owner.pid} on {owner.host}). Wait for its end or cancel it; "
        "if you know that it is gone, run `resume` with take_over: it can then write nothing more."
    )


def _home() -> Home:
    refuse_relative_places()
    return Home()


def _known(study: str) -> Study:
    """A recorded study, once its objective is found to be allowed: other doors lead into the journal too."""
    journal = _home().read_journal()
    try:
        Permits.of_environment().check(Study.open(study, journal, at=0).spec)
        return Study.open(study, journal, reading=True)
    finally:
        journal.close()


def _drive(session: Session, action: str) -> State[Any]:
    run = UUID(str(flow_run.id))
    try:
        study, summary = drive(session, action, lambda study: Suspension(study, run))
        if warning := session.finish_tracking():
            get_run_logger().warning(warning)
    finally:
        session.close()
    if session.train is not None:
        return _trained(study, *session.train)
    return _final_state(study, summary)


def _trained(study: Study, trial: int, to: int) -> State[Any]:
    found = extension_of(study, trial, to)
    return Completed(message=found.words) if found.reached else Failed(message=found.words)


def _final_state(study: Study, summary: Summary) -> State[Any]:
    """A study that a rule of its own ended has done what was asked; one that gave up has not."""
    halted = study.state.halted
    jobs = f"{study.state.completed_jobs:,} jobs"
    if summary.status != "finished" and halted is not None and not halted.rule:
        return Failed(message=f"{terminal_text(halted.reason)}. Mend that, then run `resume` with study {study.name}.")
    if not study.state.completed_jobs:
        failed = [trial.abandoned for trial in study.state.trials if trial.abandoned is not None]
        last = f"; the last trial failed with: {terminal_text(failed[-1].reason)}" if failed else ""
        return Failed(message=f"Study {study.name!r} ended without a single result{last}")
    words = "" if summary.status == "finished" or halted is None else f"{halt_words(study.spec, halted)}; "
    return Completed(message=f"{words}best {best_line(study)}, {jobs}")


def _this_flow_run() -> FlowRun:
    if flow_run.id is None:
        raise HpoError("This flow runs inside a flow run only; use the command line's `hpo tune` without Prefect.")
    with get_client(sync_client=True) as client:
        return client.read_flow_run(UUID(str(flow_run.id)))


def _stem(file: str) -> str:
    """What a study file is about: its folder where it is called study.yaml, as most are."""
    path = Path(file)
    return path.parent.name if path.stem == "study" and path.parent.name else path.stem


def _dated(stem: str, run: FlowRun) -> str:
    """The same each time Prefect starts this flow run; sorts by time."""
    if run.created is None:
        raise SpecError("The flow run has no time of creation; give the study a name.")
    begun = run.created.astimezone(UTC)
    return f"{stem[:80]}-{begun:%Y%m%d-%H%M%S}-{str(run.id)[:4]}"
