"""A study in MLflow: a run for the study, a child run for every trial."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, ClassVar

from hpo_core.model.events import Entry
from hpo_core.security.masking import without_credentials
from hpo_core.tracking.mlflow_client import KnownRun, RunStore, open_client
from hpo_core.tracking.mlflow_runs import (
    CURSOR,
    DIGEST,
    PARENT_RUN,
    cost_points,
    identity,
    study_params,
    study_run_status,
    study_tags,
    trial_name,
    trial_params,
    trial_run_status,
    trial_tags,
)
from hpo_core.tracking.projection import Projection
from hpo_core.tracking.provenance_files import ProvenanceUpload
from hpo_core.tracking.run_artifacts import (
    BEST_FOLDER,
    MODEL_TAG,
    WEIGHTS_TAG,
    loading_words,
    write_files,
    write_tables,
)
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.tracking.tracker_links import ProjectionPlace, compare_url, reason_of, run_url, write_place

_EVERY = 60.0
"""Seconds between two uploads of files while the study runs."""
_SHARE = 50
"""An upload that took a second is not repeated within so many."""
_COMPARED = 50
"""Runs on the page that compares trials; more make it slow."""

log = logging.getLogger(__name__)


class MlflowProjection(Projection):
    """Projects one study into one MLflow experiment; runs are found by their tags.

    Args:
        study_name: name of the study; also the name of its run.
        tracking_uri: ``http://...``, ``sqlite:///...`` or whatever MLflow takes.
        experiment: name of the experiment; created where absent.
        study_folder: folder with the study's checkpoints and ``report.html``.
        artifact_location: for an experiment that is created here; default: next to a SQLite store, else
            the server's own.
        client: an ``MlflowClient`` of your own.
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
        self.experiment = experiment
        self.artifact_location = artifact_location
        self._client = client
        self._opened: RunStore | None = None
        self._noted = ""
        self._promotions = 0
        """Number of promotions in the tables that were written last."""
        self._files_due = 0.0
        super().__init__(study_name, tracking_uri, study_folder, target=f"{tracking_uri} {experiment}")

    @property
    def url(self) -> str | None:
        """The page of the study's run, once there is one."""
        if self._opened is None or self._parent is None:
            return None
        return run_url(self.tracking_uri, self._opened.experiment_id, self._parent.run_id)

    @property
    def trials(self) -> int:
        return len(self._fold.trials)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._fold = TrackedStudy()
        self._provenance = ProvenanceUpload()

    @property
    def _store(self) -> RunStore:
        assert self._opened is not None
        return self._opened

    def _connect(self) -> None:
        if self._opened is None:
            client = self._client if self._client is not None else open_client(self.tracking_uri)
            self._opened = RunStore(client, self.tracking_uri, self.experiment, self.artifact_location)

    def _disconnect(self) -> None:
        super()._disconnect()
        self._opened = None
        self._parent: KnownRun | None = None
        self._trials: dict[int, KnownRun] = {}
        self._written: dict[int, int] = {}
        """Hash of the tags of each trial's run that were written last."""
        self.deleted = False

    def _fold_in(self, entry: Entry) -> None:
        self._fold.add(entry)
        self._provenance.add(entry)

    def _clear_changes(self) -> None:
        self._fold.clear_changes()

    def _find_copy(self) -> None:
        store, rebuild, of = self._store, self._anew, identity(self._fold)
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
            self._cursor, self._expected = int(tags.get(CURSOR, "-1")), tags.get(DIGEST, "")
        self._trials = {}
        for run in store.find({**of, "hpo.kind": "trial"}, deleted=not rebuild) if found or rebuild else ():
            number = int(run.tags["hpo.trial"])
            known = self._trials.get(number)
            if known is None or (run.deleted, run.run_id) < (known.deleted, known.run_id):
                run.tags = {}
                self._trials[number] = run

    def _write_changes(self) -> None:
        fold, store = self._fold, self._store
        if self.deleted:
            return
        if self._parent is None:
            tags = {**identity(fold), "hpo.kind": "study", "hpo.status": "running"}
            if (above := fold.spec.tracking.parent_run) is not None:
                tags[PARENT_RUN] = above
            self._parent = store.create(self.study_name, fold.created, tags)
        parent = self._parent
        for done, number in enumerate(fold.touched):
            self._note_trials(len(fold.trials) - len(fold.touched) + done)
            self._write_trial(store, number, parent)
        self._write_study(store, parent)
        if self.has_controller and time.monotonic() >= self._files_due:
            self._write_files(store, parent)
        self._note_place(store)

    def _write_end(self) -> None:
        fold, store, state = self._fold, self._store, self._fold.state
        fold.touched.update(dict.fromkeys(range(len(state.trials))))  # places among all results, and last states
        self._write()
        if self._parent is None or self.deleted:
            return
        write_tables(store, self._parent, fold)
        write_files(store, self._parent, fold, self.study_folder)
        self._provenance.write(store, self._parent, fold.spec, self.study_folder)
        status = study_run_status(fold, has_controller=False)[1]
        tags = self._study_tags(self._parent, status)  # how the best model is loaded
        store.log(self._parent, points=cost_points(fold), tags=tags)
        self._note_place(store, compare=True)

    def _write_trial(self, store: RunStore, number: int, parent: KnownRun) -> None:
        fold = self._fold
        notes, trial = fold.trials[number], fold.state.trials[number]
        run = self._trials.get(number)
        if run.deleted if run is not None else not notes.fresh:
            return  # a user deleted it
        tags = trial_tags(fold, number, parent.run_id)
        params = trial_params(fold.spec, trial) if notes.fresh else None
        if run is None:
            run = self._trials[number] = store.create(trial_name(fold.spec.study, number), notes.created, tags)
        digest = hash(tuple(tags.items()))
        if notes.points or params or digest != self._written.get(number):
            store.log(run, points=notes.points, params=params, tags=tags)
            self._written[number] = digest
        status, ended = trial_run_status(fold, number, has_controller=self.has_controller)
        store.set_status(run, status, ended)
        if status != "RUNNING":
            run.tags = {}  # kept only where they are likely needed again

    def _write_study(self, store: RunStore, parent: KnownRun) -> None:
        fold = self._fold
        status, word = study_run_status(fold, has_controller=self.has_controller)
        store.set_status(parent, status, None if status == "RUNNING" else fold.time)
        if self._cursor is None or self._cursor < 0:
            store.log(parent, params=study_params(fold.spec))
        tags = self._study_tags(parent, word) | {CURSOR: str(self.next_seq - 1), DIGEST: self._digest.hex()}
        store.log(parent, points=fold.points, tags=tags)

    def _study_tags(self, parent: KnownRun, word: str) -> dict[str, str]:
        fold = self._fold
        best = fold.state.incumbent
        best_run = self._trials.get(best.trial) if best is not None else None
        weights = f"runs:/{parent.run_id}/{BEST_FOLDER}" if parent.tags.get(WEIGHTS_TAG) else ""
        loading = loading_words(model=parent.tags.get(MODEL_TAG, ""), folder=weights)
        return study_tags(fold, word, None if best_run is None else best_run.run_id, loading=loading)

    def _note_place(self, store: RunStore, *, compare: bool = False) -> None:
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
            without_credentials(self.tracking_uri),
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

    def _write_files(self, store: RunStore, parent: KnownRun) -> None:
        # Upload tables and provenance while the study runs; where that fails, the numbers go on without them.
        fold = self._fold
        began = time.monotonic()
        try:
            if len(fold.promotions) != self._promotions:
                write_tables(store, parent, fold)
                self._promotions = len(fold.promotions)
            self._provenance.write(store, parent, fold.spec, self.study_folder)
        except Exception as error:
            log.warning("study %r: its files were not copied to MLflow now (%s).", self.study_name, reason_of(error))
        now = time.monotonic()
        self._files_due = now + max(_EVERY, _SHARE * (now - began))
