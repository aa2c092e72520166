"""Session: one controller of one study. It starts cluster and trackers, runs the loop, and writes the report."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from multiprocessing import resource_tracker
from typing import Any

import msgspec

from hpo_core.checkpoints.storage import local_path
from hpo_core.execution.executor import Executor, RunParts
from hpo_core.execution.loop import CheckpointCleanup, Loop, Observer, Takeover
from hpo_core.home import Home, checked_name
from hpo_core.journal.protocol import Owner
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.journal.sql import SqlJournal, current_owner, driver_words
from hpo_core.model.errors import (
    CheckpointError,
    HpoError,
    SpecError,
    StorageError,
    StudyExistsError,
    StudyNotFoundError,
)
from hpo_core.model.features import FEATURES, feature
from hpo_core.partitioning.resolution import with_partitions
from hpo_core.replay.past_results import with_past
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec, sent_functions
from hpo_core.spec.sent_functions import digest_of
from hpo_core.spec.study_file import differing_setting
from hpo_core.study import Study
from hpo_core.training.objective import load_objective, module_file, refuse_missing
from hpo_core.views.failure_reasons import another_name, cure_words, no_result_words
from hpo_flows.dask.executor import DaskExecutor
from hpo_flows.study_run.wiring import TRACKERS, wire

log = logging.getLogger("hpo.session")
START_ENDS_SECONDS = 30.0
"""Time for a start of the cluster that was given up to end; what is left of it ends with this process."""

NEWS_SECONDS = 0.5
"""Seconds between two questions for news of the cluster, such as that its jobs wait in a queue."""


class Summary(msgspec.Struct, frozen=True):
    """Summary of a finished (or halted) session."""

    jobs: int
    """Jobs of this session that have a result; the study may have more."""
    seconds: float
    report: str
    links: dict[str, str]


class Session:
    """Drives ``study`` of ``home``: creates it from ``spec``, or goes on with what the journal holds.

    Args:
        spec: for a new study; None to go on with a recorded one.
        force: take the study over from a controller that seems alive.
        extend: ask for so many further configurations before driving on.
        objective: name of the function that is trained from now on; empty: as before.
        cluster: settings of a cluster in place of the one that the study names, for this run.
        security: ``distributed.Security`` to connect to the scheduler of ``cluster.address`` with; None: as Dask's
            configuration says.
        temporary: nothing of the study is kept: no report is written.
        in_python: whether errors name calls instead of commands.
    """

    def __init__(
        self,
        home: Home,
        name: str,
        *,
        spec: StudySpec | None = None,
        force: bool = False,
        extend: int = 0,
        objective: str = "",
        cluster: dict[str, Any] | None = None,
        security: Any = None,
        temporary: bool = False,
        in_python: bool = False,
    ) -> None:
        self.home = home
        self.temporary = temporary
        self._in_python = in_python
        self.name = name
        self._given = spec
        self._force = force
        self._extend = extend
        self._objective = objective
        self.action = "extend" if extend else "resume"
        """Begins the name of its flow run."""
        if spec is not None:
            self.action = "tune" if spec.search.record() is None else "rerun"
        self.cure: Callable[[Study], str] = cure_words
        """Words about a study that gave up, or has no result."""
        self.ended: Callable[[Study, Summary], None] = lambda study, summary: None
        """Called once the study has ended by itself, before Prefect is waited for."""
        self._observers: list[Callable[[Study], Observer]] = []
        """Made once the study is open."""
        self.wrap: Callable[[Study, RunParts], Executor] = lambda study, parts: parts.executor
        """Puts another executor around the study's; called once the study is open."""
        checked_name(name)
        if spec is None:
            with contextlib.closing(home.read_journal()) as looked_at:
                looked_at.info(name)  # for a name that is not there nothing is made
        record: SqlJournal = home.open_journal()
        record.wait_in_python()
        self.journal_url = record.url
        self.journal = RetryingJournal(record)
        self.owner: Owner = current_owner()
        self._epoch: int | None = None
        """Number of this controller, from the journal; None until the study is claimed."""
        try:
            self.spec = self._find_spec()
            self.folder = home.study_folder(name, create=True)
            for function in filter(digest_of, self.spec.functions.values()):
                sent_functions.keep(function, self.folder, self.folder.parent)
        except BaseException:
            self._let_go()
            raise
        self.inform: Callable[[str], None] = log.info
        """Shows a person how the study's services stand."""
        self.trackers = [make(home, self.spec, journal_url=self.journal_url) for make in TRACKERS]
        for tracker in self.trackers:
            tracker.say = lambda words: self.inform(words)
        folders = home.import_folders(self.spec)
        if left_out := [entry for entry in self.spec.pythonpath if entry not in folders]:
            log.warning("study %r: nothing is imported from %s, which lies in the home folder.", name, left_out)
        trained = self.spec.model_copy(update={"pythonpath": folders})
        if cluster is not None:
            trained = StudySpec.from_plain(trained.plain() | {"cluster": cluster}, f"study {name!r}")
        self.executor = DaskExecutor(trained, str(self.folder), security=security)
        self._began = time.time()
        """The study is created at this moment, so that its duration holds the start of its workers."""
        self.say: Callable[[str], None] = log.warning
        """Shows a person a line about the cluster."""
        self.warn: Callable[[str], None] = log.warning
        """Shows a person what went wrong beside the study."""
        self.wait_for: Callable[[str], None] = lambda words: None
        """Shows a person what the end of the study waits for."""
        self.begun = threading.Event()
        """Set once the workers are there, or the start has failed."""
        self._start: Future[None] | None = None
        """The start of the cluster; None: nobody began it.

        Not its thread: one that is joined when Ctrl-C comes counts as ended from then on (Python 3.11).
        """
        self._closing: threading.Thread | None = None

    def _find_spec(self) -> StudySpec:
        # Check the study before anything is started, and return its spec; a recorded one is claimed, unless forced.
        if self._given is not None:
            try:
                self.journal.info(self.name)
            except StudyNotFoundError:
                self.home.tracking_uri(self._given)
                self._given = with_partitions(with_past(self._given, self.journal), digests=True)
                self._check_functions(self._given)
                return self._given
            raise StudyExistsError(f"Study {self.name!r} exists already in {self.journal}. {self._cure_of_name()}")
        spec = Study.current_spec(self.name, self.journal)
        if self._objective == spec.objective:
            self._objective = ""
        if self._objective:
            spec = spec.model_copy(update={"objective": self._objective})
        if self._extend and (refusal := Study.open(self.name, self.journal, reading=True).refuse_extension()):
            raise SpecError(refusal)
        self._check_functions(spec)
        if not self._force:
            self._claim()
        return spec

    def _check_functions(self, spec: StudySpec) -> None:
        # The one that is called here; the import by the workers tells of the others, before anything is recorded.
        folder, imports = self.home.study_folder(self.name), self.home.import_folders(spec)
        for setting, name in spec.functions.items():
            if digest_of(name) is not None:
                sent_functions.find(name, folder, folder.parent)
            elif setting == "packing.demand.function":
                load_objective(name, imports, setting=setting)
            elif spec.cluster.kind.startswith("local"):
                refuse_missing(setting, name, imports)

    def _cure_of_name(self) -> str:
        name, other = self.name, another_name(self.name)
        force, resume = f"`hpo resume {name} --force`", f"`hpo resume {name}`"
        is_rerun = self._given is not None and self._given.search.record() is not None
        extend, new = f"`hpo extend {name} --configs N`", f"`--{'as' if is_rerun else 'name'} {other}`"
        if self._in_python:
            force, resume = f"hpo.resume({name!r}, force=True)", "resume=True"
            extend, new = f"hpo.resume({name!r}, configs=N)", f"name={other!r}"
        if driver := driver_words(self.journal.info(name), self.owner):
            return f"It {driver}; {force} takes it over if you know that it is gone. {new} starts another study."
        if no_result_words(Study.open(name, self.journal, reading=True)):
            return f"It has no result to go on from: {new} starts anew."
        if self._given and (difference := differing_setting(Study.current_spec(name, self.journal), self._given)):
            return f"It is another one: {difference}. {new} starts this one, {resume} goes on with that one as it is."
        return f"{resume} goes on with it, {extend} asks for more, {new} starts another study."

    def _claim(self) -> None:
        self._epoch = self.journal.claim(self.name, self.owner, force=self._force)

    # Start.

    def speak_by(self, logger: Any) -> None:
        """Say all in the log of a flow run."""
        self.say = self.warn = logger.warning
        self.inform = logger.info
        self.wait_for = lambda words: logger.info(f"{words} ...")

    def add_observer(self, make: Callable[[Study], Observer]) -> None:
        """Have another observer made once the study is open."""
        self._observers.append(make)

    def start_cluster(self) -> None:
        """Begin to start workers, in the background; :meth:`run` waits for them."""

        def start() -> None:
            # Ctrl-C and a hangup reach the whole process group; workers and children are ended by us, in order. Threads
            # and processes started from here inherit the blocked signals. Python's resource tracker unblocks Ctrl-C in
            # the thread that starts the first process, so it is started before.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self.executor.start()
            except BaseException as error:
                made.set_exception(error)
            else:
                made.set_result(None)

        made = self._start = Future()
        threading.Thread(target=start, name="start-cluster", daemon=True).start()

    def wait_for_cluster(self) -> None:
        if self._start is None:
            self.start_cluster()
        assert self._start is not None
        while wait([self._start], NEWS_SECONDS).not_done:
            self._tell(self.executor.news())
        self._start.result()

    def _tell(self, news: str) -> None:
        if news:
            self.say(terminal_text(news))

    # Drive.

    @property
    def is_over(self) -> bool:
        """True if a recorded study has finished, and no more was asked for."""
        recorded = self._given is None and not self._extend and not self._objective
        return recorded and Study.open(self.name, self.journal, reading=True).finished

    def end_again(self) -> tuple[Study, Summary]:
        """Write the report of a study that is over and complete its copies; nothing is started for it."""
        began, study = time.monotonic(), Study.open(self.name, self.journal, reading=True)
        report, links = self.write_report(study)
        for warning in filter(None, [tracker.complete() for tracker in self.trackers]):
            self.warn(warning)
        return study, Summary(0, time.monotonic() - began, report, links)

    def run(self) -> tuple[Study, Summary]:
        """Drive the study until nothing is left to run, then write its report."""
        began, self._began = time.monotonic(), time.time()
        try:
            self.wait_for_cluster()
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled or suspended: a resume goes on with what was described
                with contextlib.suppress(HpoError):
                    self._create()
            raise
        self.begun.set()
        if dashboard := self.executor.dashboard:
            self.inform(f"Dask dashboard: {dashboard}")
        self._create()
        if self._epoch is None:
            self._claim()
        study = Study.open(self.name, self.journal, epoch=self._epoch)
        if jobs_before := study.state.completed_jobs:
            self._warn_of_other_code(study)
        self.executor.take_over()
        for tracker in self.trackers:
            tracker.start()
        wired = wire(study, self.executor, folder=self.folder, journal=self.journal, owner=self.owner, tell=self._tell)
        observers = [make(study) for make in self._observers]
        loop = Loop(
            study,
            self.wrap(study, wired),
            placer=wired.placer,
            checkpoints=CheckpointCleanup(study, self.folder),
            observers=observers,
            ticks=wired.ticks,
            takeover=Takeover(owner=self.owner, extend=self._extend, objective=self._objective),
        )
        try:
            loop.run()
        finally:
            for tracker in self.trackers:
                tracker.trials = len(study.state.trials)
            for observer in observers:
                observer.close()
            wired.close()
        for finish in wired.after:
            finish()
        self._closing = threading.Thread(target=self.executor.close, name="close-cluster")
        self._closing.start()  # while the report is written
        report, links = "", dict[str, str]()
        if not self.temporary:
            self.wait_for("writing the report")
            report, links = self.write_report(study)
        self.wait_for("copying to the trackers")
        for warning in filter(None, [tracker.finish() for tracker in self.trackers]):
            self.warn(warning)
        jobs = study.state.completed_jobs - jobs_before
        return study, Summary(jobs, time.monotonic() - began, report, links)

    def _warn_of_other_code(self, study: Study) -> None:
        objective = self.spec.objective or ""
        file = module_file(objective.partition(":")[0], [*self.home.import_folders(self.spec), *sys.path])
        (last,) = self.journal.entries(self.name, study.seq - 1)
        if file is not None and file.stat().st_mtime > last.time:
            self.warn(
                f"{file} was written after the last entry of study {self.name!r}: jobs train its code from here on, "
                "and the results before are not of it. A study of another name trains all by one code."
            )

    def _create(self) -> None:
        if self._given is not None:
            Study.create(self._given, self.journal, clock=lambda: self._began)

    # Projections.

    def write_report(self, study: Study) -> tuple[str, dict[str, str]]:
        """Write the HTML report; returns its path, and links to what belongs to the study."""
        links = {title: link for tracker in self.trackers for title, link in tracker.links().items()}
        if (best := study.state.best_checkpoint()) is not None:
            try:
                local = local_path(self.folder, best.uri, self.spec.checkpoint_base)
                gone = "" if local is None or local.exists() else " (not on this machine)"
                links["Checkpoint"] = best.uri if local is None else f"{local}{gone}"
            except CheckpointError as error:
                links["Checkpoint"] = f"not linked: {error}"
        links["Study folder"] = str(self.folder)
        if "report" not in FEATURES:
            return "", links
        entries, place = self.journal.entries(self.name), self.home.report_path(self.name)
        try:
            path = feature("report", "study_page").write_report(entries, place, links=links)
        except StorageError as error:  # the study's end matters more than its picture
            return "", links | {"Report": f"not written: {error}"}
        return str(path), links | {"Report": path.as_uri()}

    def close(self) -> None:
        """End what was started; safe to call twice."""
        if self._start is not None:
            self.wait_for("ending the workers")
            self.executor.abandon_start()
            wait([self._start], START_ENDS_SECONDS)
        if self._closing is not None:
            self._closing.join()
        self.executor.close()
        for tracker in self.trackers:
            tracker.finish(seconds=5.0)
        self._let_go()

    def _let_go(self) -> None:
        if self._epoch is not None:
            try:
                self.journal.release(self.name, self._epoch)
            except HpoError:
                pass  # the lease ends by itself; the error that brought us here is the one to show
        self.journal.close()
