"""``hpo_core.tune`` and ``hpo_core.resume``: studies driven from a script, a notebook or a flow of one's own.

The study is the one that a study file describes: same journal, recovery, report, MLflow, Prefect. What differs is where
its words come from, and that its result is returned.
"""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hpo_core.execution.loop import Observer
from hpo_core.home import Home
from hpo_core.model.errors import HpoError, ObjectiveError, SpecError, StudyNotFoundError, without_own_frames
from hpo_core.model.features import FEATURES, feature
from hpo_core.model.file_urls import sqlite_url, working_folder
from hpo_core.model.settings import MetricSpec
from hpo_core.model.space import Parameter
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.result import Result
from hpo_core.search.search_settings import SearchSettings
from hpo_core.spec import StudySpec
from hpo_core.spec.data import DataSpec
from hpo_core.spec.packing import PackingSpec
from hpo_core.spec.sections import (
    CheckpointSpec,
    PrefectSpec,
    SamplerSpec,
    ScalingSpec,
    ShareSpec,
    StopSpec,
    TrackingSpec,
    TrainingSpec,
    WarmStartSpec,
    WorkerRange,
)
from hpo_core.spec.sent_functions import folders_of, function_name
from hpo_core.spec.study_file import differing_setting, with_places
from hpo_core.study import Study
from hpo_core.views.failure_reasons import cure_in_python, failed_words, failure_lines, failures_of
from hpo_flows.early_interrupt import one_interrupt
from hpo_flows.prefect_api.connection import is_in_flow_run
from hpo_flows.python_progress import ShownProgress, write_line
from hpo_flows.study_run.in_prefect import drive_study
from hpo_flows.study_run.session import Session, Summary
from hpo_flows.tune_arguments import (
    check_callbacks,
    check_list,
    check_objective,
    cluster_settings,
    metric_settings,
    new_name,
    objective_settings,
    plain_settings,
    sampler_settings,
    search_settings,
    stop_rules,
)

log = logging.getLogger("hpo.python")
Callback = Callable[[Report], object]


@without_own_frames
def tune(
    objective: Callable[..., Any] | str,
    space: Mapping[str, Parameter | Mapping[str, Any]] | None = None,
    *,
    metric: str | MetricSpec | Sequence[str | MetricSpec] | None = None,
    mode: Literal["min", "max"] | None = None,
    method: SearchSettings | Mapping[str, Any] | str = "random",
    sampler: SamplerSpec | Mapping[str, Any] | str = "random",
    workers: int | WorkerRange | None = None,
    cluster: Any = None,
    name: str | None = None,
    resume: bool = False,
    home: str | Path | None = "",
    journal: str | None = None,
    callbacks: Sequence[Callback] = (),
    max_seconds: float | None = None,
    max_trials: int | None = None,
    target: float | None = None,
    fail_fast: bool = True,
    progress: bool = True,
    prefect: PrefectSpec | Mapping[str, Any] | Literal["auto", "jobs", "rungs", "off"] = "auto",
    style: Literal["handle", "optuna"] | None = None,
    constraints: Sequence[str] = (),
    forbidden: Sequence[Mapping[str, Any]] = (),
    start_with: Sequence[Mapping[str, Any]] = (),
    constants: Mapping[str, Any] | None = None,
    seed: int = 0,
    best_of: Literal["all_rungs", "highest_rung"] = "all_rungs",
    packing: PackingSpec | Mapping[str, Any] | bool = False,
    data: DataSpec | Mapping[str, Any] | None = None,
    share: ShareSpec | Mapping[str, Any] | bool = False,
    training: TrainingSpec | Mapping[str, Any] | None = None,
    scaling: ScalingSpec | Mapping[str, Any] | None = None,
    stop: StopSpec | Mapping[str, Any] | None = None,
    checkpoints: CheckpointSpec | Mapping[str, Any] | None = None,
    tracking: TrackingSpec | Mapping[str, Any] | None = None,
    warm_start: WarmStartSpec | Mapping[str, Any] | None = None,
    build: Callable[..., Any] | str | None = None,
    pythonpath: Sequence[str | Path] = (),
) -> Result:
    """Run a new study to its end and return its result.

    Args:
        objective: the training function, ``train(trial)``, or an Optuna objective; also as ``module:function``, an
            object that can be called, or a class whose objects can. A function that workers cannot import (of a
            notebook or of ``__main__``, a closure, a lambda) is sent by value and kept beside the study.
        space: parameters by name, such as ``{"lr": hpo.Float(1e-4, 1, log=True)}``. None: an Optuna objective, whose
            space is found by calling it.
        metric: what the function reports and the study optimizes; several: a Pareto front. An Optuna objective returns
            it, and its name is ``value`` unless given.
        mode: whether a smaller (default) or a larger value of a metric that is given by name is better.
        method: the search, such as ``hpo.Asha(configs=60, max_resource=27)``. Default: random; a trial then trains as
            far as its function does, but one step where that loops over ``trial.steps()``: say how many by
            ``hpo.Random(max_resource=27)``.
        sampler: proposes configurations: ``random``, ``ranked_gp``, a sampler of Optuna by its class name, or
            ``hpo.Sampler`` with arguments.
        workers: jobs at once on this machine; default: 2. ``hpo.WorkerRange(0, 8)``: as many as the study can use now.
        cluster: where jobs train otherwise: ``hpo.Slurm(...)`` and the like, the address of a Dask scheduler, or a
            ``distributed`` Client or cluster, which is used and left as it was; each thread of its workers is a slot.
            Without ``workers`` and ``cluster``, two workers of this machine.
        name: of the study; default: the function's, with date and time.
        resume: go on with the study of this name where it has begun, and return its result where it has ended: a
            script or flow that is started again after a crash, or tried again (``retries``), needs no other call.
        home: folder of journal, checkpoints and reports; default: ``HPO_HOME``, or ``.hpo`` here. None: nothing is
            kept, shown in Prefect or tracked in MLflow; the files of the study end with its result.
        journal: database URL of the journal; default: ``HPO_JOURNAL``, or the home's own.
        callbacks: functions that are called with each report. The study waits for them: keep them short, or start a
            thread in them. What they raise is logged.
        max_seconds: seconds after which the study halts (``stop.seconds``).
        max_trials: number of configurations (``search.configs``).
        target: value of the first metric that is good enough (``stop.target``).
        fail_fast: whether an exception of the training function is raised here, as ``hpo.ObjectiveError`` with its type
            and words, when no trial has reported before it.
        progress: whether the terminal or the notebook shows how the study goes on.
        prefect: how Prefect runs the study: ``off``, ``jobs``, ``rungs``, or ``hpo.Prefect(...)`` with tags for its
            concurrency limits.
        style: what the function is; default: an Optuna objective where ``space`` is missing, else ``train(trial)``.
        constraints: names of values reported beside the metric that must be at most 0.
        forbidden: combinations of parameters that are never tried, such as ``{"optimizer": "sgd", "lr": {"low": 1}}``.
        start_with: configurations that are tried first, whole or in part.
        constants: fixed arguments that every trial gets beside its parameters.
        seed: all draws and all training seeds follow from it.
        best_of: whose results the best one is of.
        packing: several jobs at once on a device: ``hpo.Packing(...)``, or True for its defaults.
        data: partitions that lie on the workers: ``hpo.Data(...)``.
        share: slots shared with other studies: ``hpo.Share(...)``, or True for its defaults.
        training: limits of an attempt, retries, threads, gangs: ``hpo.Training(...)``.
        scaling: how many slots a trial may grow to: ``hpo.Scaling(...)``.
        stop: rules that end the study early: ``hpo.Stop(...)``.
        checkpoints: where they lie, and their limits: ``hpo.Checkpoints(...)``.
        tracking: MLflow: ``hpo.Tracking(...)``. What it leaves out is as MLflow is set in this
            process: the active run (``mlflow.start_run``) is the parent, with its experiment.
        warm_start: earlier studies to begin from: ``hpo.WarmStart(...)``.
        build: function that makes the untrained torch module from the parameters, for MLflow.
        pythonpath: further folders that modules are imported from.

    Raises:
        SpecError: the study cannot be run as it is described; says where, what and why.
        StudyExistsError: there is a study of this name; ``resume=True`` or ``hpo_core.resume(name)`` goes on with it.
        HpoError: the study gave up, or none of its trials has a result.
        KeyboardInterrupt: Ctrl-C, or *interrupt kernel*; ``hpo_core.resume(name)`` goes on.
    """
    lists = {"constraints": constraints, "forbidden": forbidden, "start_with": start_with, "pythonpath": pythonpath}
    for argument, value in lists.items():
        check_list(argument, value)
    check_callbacks("hpo.tune", callbacks)
    with _place(home, journal) as place:
        trained, found_mode = objective_settings(objective, space, style, pythonpath)
        rules = stop_rules(stop, max_seconds, target)
        sections = {
            "packing": packing,
            "data": data,
            "share": share,
            "training": training,
            "scaling": scaling,
            "checkpoints": checkpoints,
            "tracking": tracking,
            "warm_start": warm_start,
            "build": build,
            "stop": rules,
        }
        described: dict[str, Any] = plain_settings(
            {
                "study": new_name(objective) if name is None else name,
                "constraints": constraints,
                **trained,
                **metric_settings(metric, mode, found_mode, trained["style"]),
                "search": search_settings(method, max_trials, stops=bool(rules)),
                "sampler": sampler_settings(sampler),
                "prefect": prefect,
                "forbidden": forbidden,
                "start_with": start_with,
                "constants": constants or {},
                "seed": seed,
                "best_of": best_of,
                **{section: value for section, value in sections.items() if value is not None},
            }
        )
        security: Any = None
        if cluster is not None and workers is not None:
            raise SpecError("hpo.tune: workers are those of this machine; give them, or a cluster, not both.")
        if workers is not None:
            described["cluster"] = {"kind": "local", "workers": plain_settings(workers)}
        elif cluster is not None:
            described["cluster"], security = cluster_settings(cluster)
        if home is None:
            described |= {"tracking": {"mlflow": "off"}, "prefect": "off"}
        elif "MLflow" in FEATURES:
            described["tracking"] = feature("MLflow", "mlflow_client").tracking_here(described.get("tracking", {}))
        spec = with_places(StudySpec.from_plain(described, "hpo.tune"), working_folder())
        if folders := [one for one in folders_of(list(spec.functions.values())) if one not in spec.pythonpath]:
            spec = spec.model_copy(update={"pythonpath": [*folders, *spec.pythonpath]})
        known = None
        if resume:
            if name is None or home is None:
                raise SpecError("hpo.tune: resume = True goes on with a study of a name, in a home: give name=.")
            known = _recorded(place, spec)
            if known is not None and known.spec.objective != spec.objective:  # called alike, and pickled otherwise
                log.warning(
                    "Study %r trains the function that it keeps. If you changed it since, "
                    "hpo.resume(%r, objective=...) trains the new one.",
                    spec.study,
                    spec.study,
                )
        if known is not None and (known.finished or (known.state.halted is not None and known.state.halted.rule)):
            if "MLflow" in FEATURES:
                feature("MLflow", "trackers").complete_copy(place, known, write_line if progress else log.info)
            return Result(spec.study, place)
        settings = described.get("cluster") if known else None  # where jobs train from now on
        session = Session(
            place,
            spec.study,
            spec=None if known else spec,
            cluster=settings,
            security=security,
            temporary=home is None,
            in_python=True,
        )
        return _drive(session, callbacks=callbacks, fail_fast=fail_fast, progress=progress)


def _recorded(place: Home, spec: StudySpec) -> Study | None:
    """The study of this name, None where there is none.

    Raises:
        SpecError: it is another one.
    """
    try:
        with closing(place.read_journal()) as journal:
            known = Study.open(spec.study, journal, reading=True)
    except StudyNotFoundError:
        return None
    if difference := differing_setting(known.spec, spec):
        cure = "give this one another name"
        if difference.startswith("objective "):
            call = f"hpo.resume({spec.study!r}, objective=...)"
            cure = f"{call} goes on with a changed function; or {cure}"
        raise SpecError(
            f"hpo.tune: resume = True would go on with study {spec.study!r}, which is another one: {difference}. "
            f"A study keeps its settings: {cure}."
        )
    return known


@without_own_frames
def resume(
    name: str,
    *,
    objective: Callable[..., Any] | None = None,
    configs: int = 0,
    home: str | Path = "",
    journal: str | None = None,
    cluster: Any = None,
    callbacks: Sequence[Callback] = (),
    force: bool = False,
    fail_fast: bool = False,
    progress: bool = True,
    prefect: Literal["off"] | None = None,
) -> Result:
    """Go on with a study that was interrupted or halted, or whose controller died; returns its result.

    Args:
        name: of the study; a script, a notebook or a command may have begun it.
        objective: the function to train from now on, as a study of a function in a module trains what the module
            holds at each resume; the journal says so. None: the one that the study keeps.
        configs: further configurations to ask for.
        cluster: where jobs train this time, in place of the cluster that the study names.
        force: take the study over from a controller that seems alive.
        prefect: ``off``: the study is not shown in Prefect; None: as it says itself.

    Other arguments are those of :func:`tune`.
    """
    check_callbacks("hpo.resume", callbacks)
    with _place(home, journal) as place:
        if objective is not None:
            check_objective(objective)
        settings, security = (None, None) if cluster is None else cluster_settings(cluster)
        changed = "" if objective is None else function_name(objective)
        session = Session(
            place, name, force=force, extend=configs, objective=changed, cluster=settings, security=security
        )
        shown = prefect != "off"
        return _drive(session, callbacks=callbacks, fail_fast=fail_fast, progress=progress, shown=shown)


def _drive(
    session: Session,
    *,
    callbacks: Sequence[Callback],
    fail_fast: bool,
    progress: bool,
    shown: bool = True,
) -> Result:
    shown = shown and session.spec.prefect.tasks != "off"
    progress = progress and not (shown and is_in_flow_run())  # the log of the flow run shows how it goes on
    failures: list[str] = []
    if fail_fast:
        session.add_observer(_FirstError)
    if callbacks:
        session.add_observer(lambda study: _Callbacks(callbacks))
    session.inform = log.info
    session.cure = partial(_cure, session)

    def ended(study: Study, summary: Summary) -> None:
        failures.append(failed_words(study, session.cure(study)))
        if not failures[0] and (lines := failure_lines(failures_of(study.state), str(session.folder))):
            log.warning("%s", "\n".join(lines))

    session.ended = ended

    with one_interrupt():
        try:
            with ShownProgress(session.name, on=progress) as board, closing(session):
                if progress:
                    session.add_observer(board)
                    session.wait_for = board.wait_for
                    session.say = session.inform = write_line
                drive_study(session, prefect=shown)
                if failures and failures[0]:
                    raise HpoError(failures[0])
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(_how_to_go_on(session))
            raise interrupt.with_traceback(None) from None
    return Result(session.name, session.home, temporary=session.temporary)


def _how_to_go_on(session: Session) -> str:
    if session.temporary:
        return f"Study {session.name!r} was interrupted; home=None kept nothing of it."
    place = f", home={home!r}" if (home := _home_named(session)) else ""
    return (
        f"Study {session.name!r} was interrupted, and nothing is lost: hpo.resume({session.name!r}{place}) goes on, "
        f"hpo.load({session.name!r}{place}) has its results."
    )


def _home_named(session: Session) -> str:
    # Folder of a session's home, where that has to be named; else empty.
    return "" if session.home.is_default else str(session.home.folder)


def _cure(session: Session, study: Study) -> str:
    if session.temporary:
        return "home=None kept nothing of it; with a home, hpo.load(...).jobs says how each attempt ended."
    return cure_in_python(study, _home_named(session))


class _FirstError(Observer):
    """Raises the exception of the training function, where no trial has reported before it."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def on_report(self, report: Report, granted: list[Job]) -> None:
        if report.outcome is Outcome.ERROR and not self._study.state.completed_jobs:
            error = ObjectiveError(report.message)
            where = f"raised in trial {report.trial}, attempt {report.attempt}, by the training function"
            error.add_note(f"{where}:\n{report.detail}" if report.detail else where)
            raise error


class _Callbacks(Observer):
    """Calls functions with each report; what they raise is logged."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks

    def on_report(self, report: Report, granted: list[Job]) -> None:
        for callback in self._callbacks:
            try:
                callback(report)
            except Exception:
                log.exception("callback %r failed for trial %d", callback, report.trial)


# Where it lies, and what it trained before.


@contextmanager
def _place(home: str | Path | None, journal: str | None) -> Iterator[Home]:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise HpoError(
            "hpo.tune is called while a process that the script started imports it again, and would start the study "
            'anew in each. Put what starts processes, and this call, below `if __name__ == "__main__":`.'
        )
    if home is not None:
        yield Home(home, journal)
        return
    if journal is not None:
        raise SpecError("hpo.tune: home=None keeps nothing, and a journal is kept; give one of the two.")
    folder = tempfile.mkdtemp(prefix="hpo-")
    try:
        yield Home(folder, sqlite_url(Path(folder) / "journal.db", "Temporary file", "Set TMPDIR to another folder."))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
