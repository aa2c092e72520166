"""``hpo_core.tune`` and ``hpo_core.resume``: studies driven from a script, a notebook or a flow of one's own.

The study is the one that a study file describes: same journal, recovery, report, MLflow, Prefect. What differs is where
its words come from, and that its result is returned.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import queue
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from hpo_core.home import Home
from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.model.settings import MetricSpec
from hpo_core.model.space import Parameter
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.result import Result
from hpo_core.search.search_settings import SearchSettings
from hpo_core.spec import StudySpec
from hpo_core.spec.sections import AddressClusterSpec, ClusterSettings, LocalClusterSpec
from hpo_core.study import Study
from hpo_core.tracking.active_run import tracking_here
from hpo_core.training import by_value
from hpo_flows.dask.clusters.local import keep_main_from_workers
from hpo_flows.python_progress import ShownProgress
from hpo_flows.study_run.session import Session

log = logging.getLogger("hpo.python")
CALLBACK_SECONDS = 10.0
"""How long the end of a study waits for callbacks."""
Callback = Callable[[Report], object]


def tune(
    objective: Callable[..., Any] | str,
    space: Mapping[str, Parameter | Mapping[str, Any]] | None = None,
    *,
    metric: str | MetricSpec | Sequence[MetricSpec] | None = None,
    mode: Literal["min", "max"] = "min",
    method: SearchSettings | Mapping[str, Any] | str | None = None,
    sampler: Any = "random",
    workers: int | None = None,
    cluster: Any = None,
    name: str | None = None,
    home: str | Path | None = "",
    journal: str | None = None,
    callbacks: Sequence[Callback] = (),
    max_seconds: float | None = None,
    max_trials: int | None = None,
    target: float | None = None,
    fail_fast: bool = True,
    progress: bool = True,
    prefect: Literal["auto", "jobs", "rungs", "off"] | None = None,
    **settings: Any,
) -> Result:
    """Run a new study to its end and return its result.

    Args:
        objective: the training function, ``train(trial)``, or an Optuna objective; also as ``module:function``. A
            function that workers cannot import (of a notebook or of ``__main__``, a closure, a lambda) is sent by value
            and kept beside the study.
        space: parameters by name, such as ``{"lr": hpo.Float(1e-4, 1, log=True)}``. None: an Optuna objective, whose
            space is found by calling it.
        metric: what the function reports and the study optimizes; several: a Pareto front.
        mode: whether a smaller or a larger metric is better.
        method: the search, such as ``hpo.Asha(configs=60, max_resource=27)``.
        sampler: proposes configurations: ``random``, ``ranked_gp``, a sampler of Optuna by its class name, or a mapping
            with ``name`` and arguments.
        workers: jobs at once on this machine.
        cluster: where jobs train otherwise: ``hpo.Slurm(...)`` and the like, the address of a Dask scheduler, or a
            ``distributed`` Client or cluster, which is used and left as it was.
        name: of the study; default: the function's, with date and time.
        home: folder of journal, checkpoints and reports; default: ``HPO_HOME``, or ``.hpo`` here. None: nothing is
            kept,
            shown in Prefect or tracked in MLflow; the files of the study end with its result.
        journal: database URL of the journal; default: ``HPO_JOURNAL``, or the home's own.
        callbacks: functions that are called with each report, one after the other, in a thread of their own. What they
            raise is logged.
        max_seconds: seconds after which the study halts (``stop.seconds``).
        max_trials: number of configurations, where ``method`` gives none.
        target: value of the metric that is good enough (``stop.target``).
        fail_fast: whether an exception of the training function is raised here when no trial has reported before it.
        progress: whether the terminal or the notebook shows how the study goes on.
        prefect: whether the study is shown in Prefect; default: as the settings say.
        settings: every other setting of a study file: ``packing``, ``share``, ``data``, ``training``, ``stop``,
            ``checkpoints``, ``tracking``, ``seed``, ``repeats``, ``start_with``, ``constants``, ...

    Raises:
        SpecError: the study cannot be run as it is described; says where, what and why.
        StudyExistsError: there is a study of this name; ``hpo_core.resume(name)`` goes on with it.
    """
    with _place(home, journal) as place:
        sent, described = _objective(objective, space)
        given: dict[str, Any] = dict(settings)
        stop = dict(_plain(given.pop("stop", {})))
        if max_seconds is not None:
            stop["seconds"] = max_seconds
        if target is not None:
            stop["target"] = target
        data: dict[str, Any] = {
            "study": name or _new_name(objective),
            **described,
            "search": _search(method, max_trials),
            "sampler": {"name": sampler} if isinstance(sampler, str) else _plain(sampler),
            **_metrics(metric, mode),
            **{key: _plain(value) for key, value in given.items()},
        }
        if stop:
            data["stop"] = stop
        security: Any = None
        if cluster is not None and workers is not None:
            raise SpecError("hpo.tune: workers are those of this machine; give them, or a cluster, not both.")
        if workers is not None:
            data["cluster"] = _plain(LocalClusterSpec(workers=workers))
        elif cluster is not None:
            data["cluster"], security = _cluster(cluster)
        if home is None:
            data["tracking"] = {"mlflow": "off"}
            data["prefect"] = "off"
        else:
            data["tracking"] = tracking_here(data.get("tracking", {}))
        spec = StudySpec.from_plain(data, "hpo.tune")
        session = Session(place, spec.study, spec=spec, security=security)
        if sent is not None:
            by_value.keep(sent, session.folder)
        return _drive(
            session,
            callbacks=callbacks,
            fail_fast=fail_fast,
            progress=progress,
            prefect=prefect,
            temporary=home is None,
        )


def resume(
    name: str,
    *,
    configs: int = 0,
    home: str | Path = "",
    journal: str | None = None,
    cluster: Any = None,
    callbacks: Sequence[Callback] = (),
    force: bool = False,
    fail_fast: bool = False,
    progress: bool = True,
    prefect: Literal["auto", "jobs", "rungs", "off"] | None = None,
) -> Result:
    """Go on with a study that was interrupted or halted, or whose controller died; returns its result.

    Args:
        name: of the study; a script, a notebook or a command may have begun it.
        configs: further configurations to ask for.
        cluster: where jobs train this time, in place of the cluster that the study names.
        force: take the study over from a controller that seems alive.

    Other arguments are those of :func:`tune`.
    """
    with _place(home, journal) as place:
        settings, security = (None, None) if cluster is None else _cluster(cluster)
        session = Session(place, name, force=force, extend=configs, cluster=settings, security=security)
        return _drive(session, callbacks=callbacks, fail_fast=fail_fast, progress=progress, prefect=prefect)


def _drive(
    session: Session,
    *,
    callbacks: Sequence[Callback],
    fail_fast: bool,
    progress: bool,
    prefect: Literal["auto", "jobs", "rungs", "off"] | None,
    temporary: bool = False,
) -> Result:
    if fail_fast:
        session.add_observer(_FirstError)
    if callbacks:
        session.add_observer(lambda study: _Callbacks(callbacks))
    keep_main_from_workers()
    with ShownProgress(session.name, on=progress) as shown:
        if progress:
            session.add_observer(shown)
        try:
            session.start_cluster()
            session.run()
            if warning := session.trackers.finish():
                log.warning("%s", warning)
        finally:
            session.close()
    return Result(session.name, session.home, temporary=temporary)


class _FirstError:
    """Raises the exception of the training function, where no trial has reported before it."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def on_report(self, report: Report, granted: list[Job]) -> None:
        if report.outcome is Outcome.ERROR and not self._study.state.completed_jobs:
            raise exception_of(report)

    def on_tick(self) -> None:
        """Reports say it."""

    def close(self) -> None:
        """Nothing is held."""


def exception_of(report: Report) -> Exception:
    """The exception that ended an attempt: of its own type where that is Python's, with its traceback as a note."""
    kind, _, words = report.message.partition(": ")
    found = getattr(builtins, kind, None)
    error: Exception = ObjectiveError(report.message)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            error = found(words)
        except TypeError:  # such as UnicodeDecodeError, which takes more
            pass
    error.add_note(
        f"raised in trial {report.trial}, attempt {report.attempt}, by the training function:\n{report.detail}"
    )
    return error


class _Callbacks:
    """Calls functions with each report in a thread of their own, so that they can neither stop nor slow the search."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)
        self._thread.start()

    def on_report(self, report: Report, granted: list[Job]) -> None:
        self._reports.put(report)

    def on_tick(self) -> None:
        """Reports say it."""

    def close(self) -> None:
        """Wait until all reports were seen, for :data:`CALLBACK_SECONDS` at most."""
        self._reports.put(None)
        self._thread.join(CALLBACK_SECONDS)
        if self._thread.is_alive():
            log.warning("callbacks still run %g s after the study's end; it does not wait for them", CALLBACK_SECONDS)

    def _run(self) -> None:
        while (report := self._reports.get()) is not None:
            for callback in self._callbacks:
                try:
                    callback(report)
                except Exception:
                    log.exception("callback %r failed for trial %d", callback, report.trial)


# From arguments to a study.


@contextmanager
def _place(home: str | Path | None, journal: str | None) -> Iterator[Home]:
    if home is not None:
        yield Home(home, journal)
        return
    if journal is not None:
        raise SpecError("hpo.tune: home=None keeps nothing, and a journal is kept; give one of the two.")
    folder = tempfile.mkdtemp(prefix="hpo-")
    try:
        yield Home(folder, f"sqlite:///{folder}/journal.db")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _objective(
    objective: Callable[..., Any] | str, space: Mapping[str, Any] | None
) -> tuple[by_value.Sent | None, dict[str, Any]]:
    """The settings that say what is trained, and the function where it is sent by value."""
    sent: by_value.Sent | None = None
    folders = [str(_folder_of_main())]
    if isinstance(objective, str):
        named = objective
    elif by_value.must_be_sent(objective):
        sent = by_value.pickled(objective)
        named = sent.objective
    else:
        named = f"{objective.__module__}:{objective.__qualname__}"
        folders = [str(_root_of(objective)), *folders]
    data: dict[str, Any] = {"objective": named, "pythonpath": list(dict.fromkeys(folders))}
    if space is not None:
        return sent, data | {"space": {name: _plain(parameter) for name, parameter in space.items()}}
    from hpo_core.training.objective import load_objective
    from hpo_core.training.optuna.space_discovery import find_space

    found = find_space(load_objective(named, folders) if isinstance(objective, str) else objective)
    if not found.space:
        raise SpecError(
            "hpo.tune: space is missing, and the objective suggests no parameter when it is called as an Optuna "
            "objective. Give space={name: hpo.Float(...)}."
        )
    return sent, data | {"style": "optuna", "space": found.space}


def _folder_of_main() -> Path:
    """Folder that a script's own modules are imported from; the working folder in a notebook or at a prompt."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).resolve().parent if file and "ipykernel" not in file else Path.cwd()


def _root_of(function: Callable[..., Any]) -> Path:
    """Folder that the top package of a function's module is imported from."""
    module = sys.modules[function.__module__]
    assert module.__file__ is not None
    return (
        Path(module.__file__)
        .resolve()
        .parents[function.__module__.count(".") + module.__file__.endswith("__init__.py")]
    )


def _metrics(metric: str | MetricSpec | Sequence[MetricSpec] | None, mode: str) -> dict[str, Any]:
    if metric is None:
        raise SpecError('hpo.tune: metric is missing: the name that the function reports, such as metric="val_loss".')
    if isinstance(metric, str):
        return {"metric": {"name": metric, "mode": mode}}
    if isinstance(metric, MetricSpec):
        return {"metric": _plain(metric)}
    return {"metrics": [_plain(one) for one in metric]}


def _search(method: Any, max_trials: int | None) -> dict[str, Any]:
    search = (
        {"method": "random"} if method is None else {"method": method} if isinstance(method, str) else _plain(method)
    )
    if max_trials is not None:
        if search.get("configs") not in (None, max_trials):
            raise SpecError(
                f"hpo.tune: max_trials = {max_trials}, but method has configs = {search['configs']}; give one."
            )
        search["configs"] = max_trials
    return search


def _cluster(cluster: Any) -> tuple[dict[str, Any], Any]:
    """The settings of a cluster, and ``distributed.Security`` where a Dask object was given.

    Of such an object address and certificates are taken, nothing else is used: the study has a client of its own.

    Raises:
        SpecError: it is no cluster, is closed, or lives in the event loop that this call would block.
    """
    if isinstance(cluster, str):
        return {"kind": "address", "address": cluster}, None
    if isinstance(cluster, ClusterSettings | Mapping):
        return _plain(cluster), None
    scheduler = getattr(cluster, "scheduler", None)
    address = getattr(cluster, "scheduler_address", None) or getattr(scheduler, "address", None)
    named = f"hpo.tune: cluster = {type(cluster).__name__}(...)"
    if not hasattr(cluster, "scheduler") or not hasattr(cluster, "loop"):
        raise SpecError(
            f"hpo.tune: cluster = {cluster!r:.100} is no cluster: give hpo.Slurm(...), an address, a "
            "distributed.Client, or a running Dask cluster."
        )
    status = str(getattr(cluster.status, "name", cluster.status))
    if status != "running" or not address:
        raise SpecError(f"{named} is {status}; give one that is connected (await an asynchronous one first).")
    if getattr(cluster.loop, "asyncio_loop", None) is asyncio._get_running_loop() is not None:
        raise SpecError(
            f"{named} lives in the event loop of this thread, which the call would block. Call it in a thread: "
            "result = await asyncio.to_thread(hpo.tune, ...)."
        )
    return _plain(AddressClusterSpec(address=address)), getattr(cluster, "security", None)


def _plain(value: Any) -> Any:
    """Settings as plain data, what is not set left out."""
    if isinstance(value, BaseModel):
        tags = {name: getattr(value, name) for name in ("method", "kind", "type") if name in type(value).model_fields}
        return value.model_dump(mode="json", exclude_unset=True) | tags
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _new_name(objective: Callable[..., Any] | str) -> str:
    called = objective.partition(":")[2] if isinstance(objective, str) else getattr(objective, "__name__", "")
    stem = re.sub(r"[^A-Za-z0-9]+", "-", called).strip("-") or "study"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
