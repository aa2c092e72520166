"""A study in MLflow: a run for the study, a child run for every trial.

The copy is one way (nothing it holds is ever read back into a study), rebuildable (from the entries alone), written by
one process at a time, and never needed for a study to go on.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from hpo_core.model.errors import HpoError, JournalError
from hpo_core.model.events import Entry
from hpo_core.security.masking import without_credentials
from hpo_core.security.private_files import LockFile
from hpo_core.tracking.mlflow_client import KnownRun, RunStore, open_client
from hpo_core.tracking.mlflow_runs import (
    CURSOR,
    PARENT_RUN,
    cost_points,
    identity,
    study_params,
    study_run_status,
    study_tags,
    trial_params,
    trial_run_status,
    trial_tags,
)
from hpo_core.tracking.provenance_files import CodeVersion, ProvenanceUpload
from hpo_core.tracking.run_artifacts import (
    BEST_FOLDER,
    MODEL_TAG,
    WEIGHTS_TAG,
    loading_words,
    write_files,
    write_tables,
)
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.tracking.tracker_links import (
    CopyProgress,
    ProjectionPlace,
    note_progress,
    run_url,
    write_place,
)

CHUNK = 500
"""Entries taken in at once while catching up."""
_NOTED_SECONDS = 0.5
"""Time between two notes of how far it is."""

log = logging.getLogger(__name__)


class ProjectionBusyError(HpoError):
    """Another process, still alive, projects the study to the same place."""

    exit_code = 5


class MlflowProjection:
    """Projects one study into one MLflow experiment; runs are found by their tags.

    A process feeds it the journal once from entry 0, then what is new::

        projection.project(journal.entries(name))
        while driven:
            projection.project(journal.entries(name, projection.next_seq))
        projection.finish()

    Any call may raise whatever MLflow raises; calling it again later loses and doubles nothing: what was folded is
    kept, and what MLflow holds is looked up anew.

    Args:
        study_name: name of the study; also the name of its run.
        tracking_uri: ``http://...``, ``sqlite:///...`` or whatever MLflow takes.
        experiment: name of the experiment; created where absent.
        study_folder: folder with the study's checkpoints, ``report.html`` and the lock.
        artifact_location: for an experiment that is created here; default: next to a SQLite store, else
            the server's own.
        client: an ``MlflowClient`` of your own.
    """

    def __init__(
        self,
        study_name: str,
        tracking_uri: str,
        experiment: str,
        study_folder: str | Path,
        artifact_location: str | None = None,
        *,
        client: Any = None,
    ) -> None:
        self.study_name = study_name
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.study_folder = Path(study_folder)
        self.artifact_location = artifact_location
        self.has_controller = True
        self.lock = ProcessLock(self.study_folder, f"{tracking_uri} {experiment}")
        self.progress = CopyProgress()
        """Noted last."""
        self._client = client
        self._opened: RunStore | None = None
        self._noted = ""
        self._anew = False
        """A rebuild is under way."""
        self.version: CodeVersion | None = None
        """Code and packages of the study's controller, until they are uploaded."""
        self._copied = 0
        self._noted_at = 0.0
        self._begin_anew()

    def note(self, *, complete: bool = False, trouble: str = "") -> None:
        """Leave word how far the copy is, for whoever waits for it."""
        self._noted_at = time.monotonic()
        self.progress = CopyProgress(
            trials=self._copied, entries=self.written_seq + 1, complete=complete, trouble=trouble, process=os.getpid()
        )
        note_progress(self.study_folder, self.progress)

    @property
    def written_seq(self) -> int:
        return -1 if self._cursor is None else self._cursor

    @property
    def url(self) -> str | None:
        """The page of the study's run, once there is one."""
        if self._opened is None or self._parent is None:
            return None
        return run_url(self.tracking_uri, self._opened.experiment_id, self._parent.run_id)

    def project(self, entries: Iterable[Entry], *, rebuild: bool = False, length: int | None = None) -> int:
        """Copy what is new; returns how many entries MLflow did not hold before.

        Args:
            entries: in order; those before :attr:`next_seq` are skipped.
            rebuild: begin again at entry 0, and make anew what a user deleted.
            length: number of entries of the whole journal, where ``entries`` go up to its end.

        Raises:
            JournalError: an older journal was put back: MLflow holds another history.
            ProjectionBusyError: another process projects this study.
            JournalError: entries are missing or out of order.
            Exception: whatever MLflow raises; call again later.
        """
        self.lock.take()
        if rebuild:
            self._begin_anew()
            self._anew = True
        fresh = (entry for entry in entries if entry.seq >= self.next_seq)
        count, is_more = 0, True
        try:
            while is_more:
                self._connect()  # first: where it cannot be reached, no entry is read in vain
                chunk = list(islice(fresh, CHUNK))
                self.has_controller = self.has_controller or bool(chunk)
                for entry in chunk:
                    self._take_in(entry)
                if self.written_seq < self.next_seq - 1:
                    count += self.next_seq - 1 - self.written_seq
                    self._write()
                is_more = bool(chunk)
            if self.next_seq:
                self._look_up()  # also where nothing is new: somebody may have deleted the copy
            if length is not None and self.written_seq >= length and not self.deleted:
                raise JournalError(
                    f"Study {self.study_name!r}: MLflow holds entries up to {self.written_seq}, the journal has "
                    f"{length}. An older journal was put back, it seems. Delete the study's runs in MLflow "
                    f"(tags.`hpo.study` = '{self.study_name}'); `hpo project {self.study_name} --rebuild` makes them "
                    "anew."
                )
        except BaseException:
            self._disconnect()
            raise
        self._anew = False
        return count

    def finish(self) -> None:
        """Write last statuses and everything that is written once: nobody drives the study any more."""
        if not self.next_seq:
            return
        self.lock.take()
        self.has_controller = False
        try:
            self._connect()
            self._write_end()
            self.note(complete=True)
        except BaseException:
            self._disconnect()
            raise

    def close(self) -> None:
        """Let another process project."""
        self._disconnect()
        self.lock.free()

    def _begin_anew(self) -> None:
        self.next_seq = 0
        """The first entry not taken in yet."""
        self.fold = TrackedStudy()
        self._provenance = ProvenanceUpload()
        self._cursor: int | None = None
        self._disconnect()

    def _connect(self) -> None:
        if self._opened is None:
            client = self._client if self._client is not None else open_client(self.tracking_uri)
            self._opened = RunStore(client, self.tracking_uri, self.experiment, self.artifact_location)

    def _disconnect(self) -> None:
        # Forget what MLflow holds: after an error nobody knows whether the last call took place.
        self._looked_up = False
        self._opened = None
        self._parent: KnownRun | None = None
        self._trials: dict[int, KnownRun] = {}
        self._written: dict[int, int] = {}
        """Hash of the tags of each trial's run that were written last."""
        self.deleted = False
        """Somebody deleted the study's run, so nothing was written."""

    @property
    def _store(self) -> RunStore:
        assert self._opened is not None
        return self._opened

    def _take_in(self, entry: Entry) -> None:
        if entry.seq != self.next_seq:
            raise JournalError(
                f"Projection: entry {entry.seq} was given where entry {self.next_seq} is next. "
                "Give the journal's entries in order and without a gap."
            )
        self.fold.add(entry)
        self._provenance.add(entry)
        self.next_seq += 1
        self._look_up()
        if entry.seq <= self.written_seq:
            self.fold.clear_changes()

    def _look_up(self) -> None:
        if not self._looked_up:
            self._find_copy()
            self._looked_up = True

    def _write(self) -> None:
        self._look_up()
        self._write_changes()
        self._cursor = self.next_seq - 1
        self.fold.clear_changes()
        self._copied = len(self.fold.trials)
        self.note()

    def _find_copy(self) -> None:
        store, rebuild, of = self._store, self._anew, identity(self.fold)
        found = store.find({**of, "hpo.kind": "study"}, deleted=not rebuild)
        found.sort(key=lambda run: (run.deleted, run.run_id))
        self._parent = found[0] if found else None
        self.deleted = self._parent.deleted if self._parent is not None else self.written_seq >= 0
        if self.deleted:
            log.warning(
                "study %r: its run was deleted from MLflow (%s); nothing more is written there. "
                "`hpo project %s --rebuild` makes it anew.",
                self.study_name,
                without_credentials(self.tracking_uri),
                self.study_name,
            )
        if rebuild and self._parent is not None:
            store.log(self._parent, tags={CURSOR: "-1"})  # should the rebuild be cut short, it is not complete
        if self._cursor is None:
            tags = {} if self._parent is None else self._parent.tags
            self._cursor = int(tags.get(CURSOR, "-1"))
        self._trials = {}
        for run in store.find({**of, "hpo.kind": "trial"}, deleted=False):
            number, run.tags = int(run.tags["hpo.trial"]), {}
            self._trials[number] = run

    def _write_changes(self) -> None:
        fold, store = self.fold, self._store
        if self.deleted:
            return
        if self._parent is None:
            tags = {**identity(fold), "hpo.kind": "study", "hpo.status": "running"}
            if (above := fold.spec.tracking.parent_run) is not None:
                tags[PARENT_RUN] = above
            self._parent = store.create(self.study_name, fold.created, tags)
        parent = self._parent
        for done, number in enumerate(fold.touched):
            self._copied = len(fold.trials) - len(fold.touched) + done
            if time.monotonic() - self._noted_at >= _NOTED_SECONDS:
                self.note()
            self._write_trial(store, number, parent)
        self._write_study(store, parent)
        self._note_place(store)

    def _write_end(self) -> None:
        fold, store, state = self.fold, self._store, self.fold.state
        fold.touched.update(dict.fromkeys(range(len(state.trials))))  # places among all results, and last states
        self._write()
        if self._parent is None or self.deleted:
            return
        write_tables(store, self._parent, fold)
        write_files(store, self._parent, fold, self.study_folder)
        self._provenance.write(store, self._parent, fold.spec, self.version)
        self.version = None
        status = study_run_status(fold, has_controller=False)[1]
        tags = self._study_tags(self._parent, status)  # how the best model is loaded
        store.log(self._parent, points=cost_points(fold), tags=tags)

    def _write_trial(self, store: RunStore, number: int, parent: KnownRun) -> None:
        fold = self.fold
        notes, trial = fold.trials[number], fold.state.trials[number]
        run = self._trials.get(number)
        if run is None and not notes.fresh:
            return  # a user deleted it
        tags = trial_tags(fold, number, parent.run_id)
        params = trial_params(fold.spec, trial) if notes.fresh else None
        if run is None:
            run = self._trials[number] = store.create(f"{fold.spec.study}/trial-{number}", notes.created, tags)
        digest = hash(tuple(tags.items()))
        if notes.points or params or digest != self._written.get(number):
            store.log(run, points=notes.points, params=params, tags=tags)
            self._written[number] = digest
        status, ended = trial_run_status(fold, number, has_controller=self.has_controller)
        store.set_status(run, status, ended)
        if status != "RUNNING":
            run.tags = {}  # kept only where they are likely needed again

    def _write_study(self, store: RunStore, parent: KnownRun) -> None:
        fold = self.fold
        status, word = study_run_status(fold, has_controller=self.has_controller)
        store.set_status(parent, status, None if status == "RUNNING" else fold.time)
        if self._cursor is None or self._cursor < 0:
            store.log(parent, params=study_params(fold.spec))
        tags = self._study_tags(parent, word) | {CURSOR: str(self.next_seq - 1)}
        store.log(parent, points=fold.points, tags=tags)

    def _study_tags(self, parent: KnownRun, word: str) -> dict[str, str]:
        fold = self.fold
        best = fold.state.incumbent
        best_run = self._trials.get(best.trial) if best is not None else None
        weights = f"runs:/{parent.run_id}/{BEST_FOLDER}" if parent.tags.get(WEIGHTS_TAG) else ""
        loading = loading_words(model=parent.tags.get(MODEL_TAG, ""), folder=weights)
        return study_tags(fold, word, None if best_run is None else best_run.run_id, loading=loading)

    def _note_place(self, store: RunStore) -> None:
        assert self._parent is not None
        run_id = self._parent.run_id
        if self._noted == run_id:
            return
        self._noted, uri = run_id, without_credentials(self.tracking_uri)
        try:
            url = run_url(uri, store.experiment_id, run_id)
            write_place(self.study_folder, ProjectionPlace(uri, store.experiment_id, run_id, url))
        except OSError as error:
            log.warning("study %r: the link to MLflow was not noted (%s).", self.study_name, error)


class ProcessLock:
    """A lock on a file, which names the process that holds it; the kernel frees it when its process ends."""

    def __init__(self, folder: Path, target: str) -> None:
        self.path = folder / f".projection-{hashlib.sha256(target.encode()).hexdigest()[:12]}.lock"
        self._file: LockFile | None = None

    def take(self) -> None:
        """Take the lock; harmless where this object holds it.

        Raises:
            ProjectionBusyError: another process holds it.
            StorageError: the folder cannot be written.
        """
        if self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = LockFile(self.path, "the copy of a study", cure="make its folder writable")
        if not file.take(fcntl.LOCK_EX):
            holder = file.read().strip() or "unknown"
            file.close()
            raise ProjectionBusyError(
                f"{self.path}: process {holder} projects this study already, and one at "
                "a time may. It catches up by itself; to do it by hand, end that process first."
            )
        file.write(f"{os.getpid()}\n")
        self._file = file

    def holder(self) -> int | None:
        """Process that holds the lock; None where nobody does, or it left no number."""
        if not self.path.exists():
            return None
        with closing(LockFile(self.path, "the copy of a study")) as file:
            found = "" if file.take(fcntl.LOCK_EX) else file.read().strip()
        return int(found) if found.isdecimal() else None

    def free(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
