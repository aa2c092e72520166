"""A study in MLflow: a run for the study, a child run for every trial."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from hpo_core.model.events import Entry
from hpo_core.tracking.mlflow_client import SUPERSEDED, KnownRun, RunStore, open_client
from hpo_core.tracking.mlflow_links import compare_url, reason_of, run_url, shown_uri
from hpo_core.tracking.models.loading_words import loading_words
from hpo_core.tracking.projection import DivergedError, chained
from hpo_core.tracking.projection_lock import ProcessLock
from hpo_core.tracking.provenance.upload import ProvenanceUpload
from hpo_core.tracking.run_artifacts import BEST_FOLDER, MODEL_TAG, WEIGHTS_TAG, write_files, write_tables
from hpo_core.tracking.run_contents import study_params, study_run_status, trial_name, trial_params, trial_run_status
from hpo_core.tracking.run_location import ProjectionPlace, write_place
from hpo_core.tracking.run_tags import CURSOR, DIGEST, identity, study_tags, trial_tags
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.tracking.trial_table import table_link, table_tag, trial_table

CHUNK = 500
"""Entries written at once while catching up; the cursor moves after each chunk."""
_TABLES_EVERY = 30.0
_COMPARED = 50
"""Runs on the page that compares trials; more make it slow."""

log = logging.getLogger(__name__)


class MlflowProjection:
    """Projects one study into one MLflow experiment.

    Runs are found by their tags, so a call that was cut short is made good by the next one. After an
    exception the object stays usable: what was folded is kept and written by the next call.

    Args:
        study_name: Name of the study; also the name of its run.
        tracking_uri: ``http://...``, ``sqlite:///...`` or whatever MLflow takes.
        experiment: Name of the experiment; created where absent.
        study_folder: Folder with the study's checkpoints and ``report.html``; holds the lock.
        artifact_location: For an experiment that is created here; default: next to a SQLite store, else
            the server's own.
        client: An ``MlflowClient`` of your own.
    """

    tracker: ClassVar[str] = "MLflow"

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
        self._client = client
        self._store: RunStore | None = None
        self._fold = TrackedStudy()
        self._provenance = ProvenanceUpload()
        self._cursor: int | None = None
        self._chain = b""
        self._expected = ""
        """Digest of the journal that MLflow holds, as of the cursor that was found there."""
        self._parent: KnownRun | None = None
        self._trials: dict[int, KnownRun] = {}
        self._noted = ""
        self._view = ""
        """Columns and charts that the experiment holds, as far as is known."""
        self._looked_up = False
        self._anew = False
        """A rebuild is under way: deleted runs do not count."""
        self._muted = False
        """The study's run was deleted: nothing is written."""
        self._tables = (0, -_TABLES_EVERY)
        self.lock = ProcessLock.of(self.study_folder, f"{tracking_uri} {experiment}")

    # What callers may ask.

    @property
    def next_seq(self) -> int:
        """The first entry not taken in yet."""
        return self._fold.next_seq

    @property
    def created(self) -> float | None:
        """Time of entry 0; None before it was taken in."""
        return self._fold.created if self._fold.next_seq else None

    @property
    def written_seq(self) -> int:
        """The last entry MLflow surely holds (-1: none)."""
        return -1 if self._cursor is None else self._cursor

    @property
    def run_id(self) -> str | None:
        """The study's run, once there is one."""
        return None if self._parent is None else self._parent.run_id

    @property
    def url(self) -> str | None:
        """The page of the study's run, once there is one."""
        if self._store is None or self._parent is None:
            return None
        return run_url(self.tracking_uri, self._store.experiment_id, self._parent.run_id)

    @property
    def deleted(self) -> bool:
        """Whether a user deleted the study's run, so that nothing was written."""
        return self._muted

    # The protocol.

    def project(self, entries: Iterable[Entry], *, rebuild: bool = False, length: int | None = None) -> int:
        """Copy what is new; returns how many entries MLflow did not hold before.

        Feed it from entry 0 the first time, then from :attr:`next_seq`; earlier entries are skipped.
        ``rebuild`` begins again at entry 0 and makes runs that a user deleted anew.

        Args:
            length: number of entries of the whole journal, where ``entries`` go up to its end.

        Raises:
            DivergedError: MLflow holds entries that the journal does not (see :meth:`supersede`).
            ProjectionBusyError: another process projects this study.
            JournalError: entries are missing or out of order.
            Exception: whatever MLflow raises; call again later.
        """
        self.lock.take()
        if rebuild:
            self._begin_anew()
            self._anew = True
        fresh = (entry for entry in entries if entry.seq >= self._fold.next_seq)
        count = 0
        try:
            while True:
                store = self._connected()  # first: where it cannot be reached, no entry is read in vain
                chunk = list(islice(fresh, CHUNK))
                if not chunk and not self._pending:
                    break
                self.has_controller = self.has_controller or bool(chunk)
                for entry in chunk:
                    self._take_in(entry, store)
                if self._pending:
                    count += self._fold.next_seq - 1 - self.written_seq
                    self._write(store)
            if length is not None and self.written_seq >= length and not self._muted:
                raise self._diverged(f"MLflow holds entries up to {self.written_seq}, the journal has {length}")
        except BaseException:
            self._disconnect()
            raise
        self._anew = False
        return count

    def supersede(self) -> None:
        """Take all runs of the study out of sight and begin again at entry 0, with new ones.

        For an older journal that was put back: MLflow keeps every point for ever, so of runs that hold steps of a
        history that is no more none can be mended. They are deleted (and can be restored), children first, so that a
        crash on the way leaves the study's own run, by which this is found out again.
        """
        self.lock.take()
        fold = self._fold
        if not fold.next_seq:
            return
        try:
            store = self._connected()
            for kind in (SUPERSEDED + "trial", "trial", "study"):  # the first: marked, but not deleted yet
                for run in store.find({**identity(fold), "hpo.kind": kind}, deleted=False):
                    store.supersede(run, kind.removeprefix(SUPERSEDED))
        finally:
            self._disconnect()
        self._begin_anew()

    def finish(self) -> None:
        """Nobody drives the study any more: last statuses, tables, report and best checkpoint."""
        if not self._fold.next_seq:
            return
        self.lock.take()
        self.has_controller = False
        fold = self._fold
        state = fold.state
        fold.touched.update(dict.fromkeys([*state.running, *state.waiting, *state.extended]))
        try:
            store = self._connected()
            self._write(store)
            if self._parent is not None and not self._muted:
                write_tables(store, self._parent, fold)
                write_files(store, self._parent, fold, self.study_folder)
                self._provenance.write(store, self._parent, fold.spec, self.study_folder)
                tags = self._changed_tags(self._parent, study_run_status(fold, has_controller=False)[1])
                store.log(self._parent, tags=tags)  # how the best model is loaded
                self._parent.tags.update(tags)
                self._note_place(store, compare=True)
        except BaseException:
            self._disconnect()
            raise

    def close(self) -> None:
        """Let another process project."""
        self._disconnect()
        self.lock.free()

    # Inside.

    def _begin_anew(self) -> None:
        self._fold = TrackedStudy()
        self._provenance = ProvenanceUpload()
        self._chain, self._expected = b"", ""
        self._disconnect()
        self._cursor = None

    def _diverged(self, how: str) -> DivergedError:
        return DivergedError(
            f"Study {self.study_name!r}: {how}. An older journal was put back, it seems; "
            f"`hpo project {self.study_name}` makes the study's runs in MLflow anew."
        )

    @property
    def _pending(self) -> bool:
        """Whether entries were folded that MLflow does not hold."""
        return self.written_seq < self._fold.next_seq - 1

    def _connected(self) -> RunStore:
        if self._store is None:
            client = self._client if self._client is not None else open_client(self.tracking_uri)
            self._store = RunStore(client, self.tracking_uri, self.experiment, self.artifact_location)
        return self._store

    def _disconnect(self) -> None:
        """Forget what MLflow holds: after an error nobody knows whether the last call took place."""
        self._store = None
        self._parent = None
        self._trials = {}
        self._view = ""
        self._looked_up = False
        self._muted = False

    def _take_in(self, entry: Entry, store: RunStore) -> None:
        fold = self._fold
        fold.add(entry)
        self._provenance.add(entry)
        self._chain = chained(self._chain, entry)
        if not self._looked_up:
            self._look_up(store)
        if entry.seq == self.written_seq and self._expected not in ("", self._chain.hex()) and not self._muted:
            raise self._diverged(f"what MLflow holds up to entry {entry.seq} is not what the journal holds")
        if entry.seq <= self.written_seq:
            fold.clear_changes()

    def _look_up(self, store: RunStore) -> None:
        """Find the runs of this study, and how far they are."""
        fold, rebuild = self._fold, self._anew
        found = store.find({**identity(fold), "hpo.kind": "study"}, deleted=not rebuild)
        found.sort(key=lambda run: (run.deleted, run.run_id))
        self._parent = found[0] if found else None
        self._muted = (self._parent is not None and self._parent.deleted) or (
            self._parent is None and self.written_seq >= 0
        )
        if self._muted:
            log.warning(
                "study %r: its run was deleted from MLflow (%s); nothing more is written there. "
                "`hpo project %s --rebuild` makes it anew.",
                self.study_name,
                shown_uri(self.tracking_uri),
                self.study_name,
            )
        if rebuild and self._parent is not None:
            store.log(self._parent, tags={CURSOR: "-1"})  # should the rebuild be cut short, it is not complete
            self._parent.tags[CURSOR] = "-1"
        if self._cursor is None:
            self._cursor = int(self._parent.tags.get(CURSOR, "-1")) if self._parent is not None else -1
            self._expected = self._parent.tags.get(DIGEST, "") if self._parent is not None else ""
        self._trials = {}
        if found or rebuild:
            for run in store.find({**identity(fold), "hpo.kind": "trial"}, deleted=not rebuild):
                number = int(run.tags["hpo.trial"])
                known = self._trials.get(number)
                if known is None or (run.deleted, run.run_id) < (known.deleted, known.run_id):
                    run.tags = {}
                    self._trials[number] = run
        self._looked_up = True

    def _write(self, store: RunStore) -> None:
        """Write all that changed since the cursor; children first, the cursor last."""
        fold = self._fold
        if not self._looked_up:
            self._look_up(store)
        if not self._muted:
            if self._parent is None:
                tags = {**identity(fold), "hpo.kind": "study", "hpo.status": "running"}
                self._parent = store.create(self.study_name, fold.created, tags)
            parent = self._parent
            for number in fold.touched:
                self._write_trial(store, number, parent)
            self._write_study(store, parent)
            if self.has_controller:
                self._provenance.write_now_and_then(store, parent, fold.spec, self.study_folder)
            self._note_place(store)
        self._cursor = fold.next_seq - 1
        fold.clear_changes()

    def _write_trial(self, store: RunStore, number: int, parent: KnownRun) -> None:
        fold = self._fold
        notes, trial = fold.trials[number], fold.state.trials[number]
        run = self._trials.get(number)
        if run.deleted if run is not None else not notes.fresh:
            return  # a user deleted it
        tags = trial_tags(fold, number, parent.run_id)
        params = trial_params(fold.spec, trial) if notes.fresh else None
        if run is None:
            run = store.create(trial_name(number), notes.created, tags)
            self._trials[number] = run
            store.log(run, points=notes.points, params=params)
        else:
            changed = {key: value for key, value in tags.items() if run.tags.get(key) != value}
            store.log(run, points=notes.points, params=params, tags=changed)
        status, ended = trial_run_status(fold, number, has_controller=self.has_controller)
        store.set_status(run, status, ended)
        run.tags = tags if status == "RUNNING" else {}  # kept only where they are likely needed again

    def _write_study(self, store: RunStore, parent: KnownRun) -> None:
        fold = self._fold
        status, word = study_run_status(fold, has_controller=self.has_controller)
        store.set_status(parent, status, None if status == "RUNNING" else fold.time)
        if self._cursor is None or self._cursor < 0:
            store.log(parent, params=study_params(fold.spec))
        view = trial_table(fold.spec, identity(fold), fold.logarithmic)
        if view != self._view:
            store.tag_experiment(table_tag(identity(fold)), view)
            self._view = view
        tags = self._changed_tags(parent, word)
        self._write_tables(store, parent)
        store.log(parent, points=fold.points, tags={**tags, CURSOR: str(fold.next_seq - 1), DIGEST: self._chain.hex()})
        parent.tags.update(tags)

    def _changed_tags(self, parent: KnownRun, word: str) -> dict[str, str]:
        """Tags of the study's run that MLflow does not hold yet."""
        fold = self._fold
        best = fold.state.incumbent
        best_run = self._trials.get(best.trial) if best is not None else None
        weights = f"runs:/{parent.run_id}/{BEST_FOLDER}" if parent.tags.get(WEIGHTS_TAG) else ""
        loading = loading_words(model=parent.tags.get(MODEL_TAG, ""), folder=weights)
        links = {}
        if self._store is not None:
            of, experiment = identity(fold), self._store.experiment_id
            links = {"table": table_link(of, experiment), "charts": table_link(of, experiment, charts=True)}
        tags = study_tags(fold, word, None if best_run is None else best_run.run_id, loading=loading, **links)
        return {key: value for key, value in tags.items() if parent.tags.get(key) != value}

    def _note_place(self, store: RunStore, *, compare: bool = False) -> None:
        """Write where the run is into the study's folder."""
        assert self._parent is not None
        if self._noted == self._parent.run_id and not compare:
            return
        best = ""
        if compare:
            trials = [trial for trial in self._fold.state.trials if trial.loss is not None and not trial.infeasible]
            trials.sort(key=lambda trial: (-trial.resource, trial.loss))
            known = [run for trial in trials if (run := self._trials.get(trial.number)) and not run.deleted]
            ids = [run.run_id for run in known[:_COMPARED]]
            best = compare_url(self.tracking_uri, store.experiment_id, ids)
        run_id = self._parent.run_id
        place = ProjectionPlace(
            shown_uri(self.tracking_uri),
            store.experiment_id,
            run_id,
            run_url(self.tracking_uri, store.experiment_id, run_id),
            best,
        )
        self._noted = run_id
        try:
            write_place(self.study_folder, place)
        except OSError as error:
            log.warning("study %r: the link to MLflow was not noted (%s).", self.study_name, error)

    def _write_tables(self, store: RunStore, parent: KnownRun) -> None:
        """Refresh the tables now and then. Where files cannot be written, the numbers go on without them."""
        fold = self._fold
        count, at = self._tables
        if not self.has_controller or len(fold.promotions) == count or time.monotonic() - at < _TABLES_EVERY:
            return
        self._tables = (len(fold.promotions), time.monotonic())
        try:
            write_tables(store, parent, fold)
        except Exception as error:
            log.warning("study %r: promotions.json was not written to MLflow (%s).", self.study_name, reason_of(error))
