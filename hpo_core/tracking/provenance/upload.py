"""Uploads what reproduces a study to its run: now and then while it runs, and at its end."""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

import yaml

from hpo_core.model.events import Entry
from hpo_core.spec import StudySpec
from hpo_core.tracking.mlflow_client import KnownRun, RunStore
from hpo_core.tracking.mlflow_links import reason_of
from hpo_core.tracking.provenance.journal_copy import MAX_BYTES, JournalCopy
from hpo_core.tracking.provenance.versions_file import FOLDER, VERSIONS, Noted, read_versions

JOURNAL = "journal.jsonl.gz"
STUDY_FILE = "study.yaml"
ENTRIES_TAG = "hpo.journal_entries"
DIGEST_TAG = "hpo.journal_digest"
_EVERY = 60.0
_SHARE = 50
"""An upload that took a second is not repeated within so many."""
log = logging.getLogger(__name__)


def study_file(spec: StudySpec) -> str:
    """The study as a YAML file. It names no folders of code: by default they are the file's and the current one."""
    plain = {key: value for key, value in spec.plain().items() if key != "pythonpath" and value not in (None, [], {})}
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


class ProvenanceUpload:
    """Collects the entries of one study and keeps its run's folder ``provenance`` up to date."""

    def __init__(self) -> None:
        self._copy = JournalCopy()
        self._due = 0.0
        self._versions = 0
        self._warned = False

    def add(self, entry: Entry) -> None:
        """Take in the next entry."""
        self._copy.add(entry)

    def write_now_and_then(self, store: RunStore, run: KnownRun, spec: StudySpec, study_folder: Path) -> None:
        """Upload if the last time is long enough ago. A failure is logged: the numbers go on without."""
        if time.monotonic() < self._due:
            return
        began = time.monotonic()
        try:
            self.write(store, run, spec, study_folder)
        except Exception as error:
            log.warning("study %r: its journal was not copied to MLflow now (%s).", spec.study, reason_of(error))
        now = time.monotonic()
        self._due = now + max(_EVERY, _SHARE * (now - began))

    def write(self, store: RunStore, run: KnownRun, spec: StudySpec, study_folder: Path) -> None:
        """Upload what is not there yet: files first, then the tags that vouch for them."""
        if not store.takes_files(run):
            return
        versions = read_versions(study_folder)
        tags: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="hpo-provenance-") as side:
            folder = Path(side)
            if len(versions) != self._versions:
                tags |= _version_files(versions[-1] if versions else None, study_folder, folder)
            if run.tags.get(DIGEST_TAG) != self._copy.digest and self._is_whole(spec.study):
                (folder / JOURNAL).write_bytes(self._copy.packed())
                (folder / STUDY_FILE).write_text(study_file(spec))
                tags |= {ENTRIES_TAG: str(self._copy.entries), DIGEST_TAG: self._copy.digest}
            if not any(folder.iterdir()):
                return
            store.files(run).log_artifacts(side, FOLDER)
        self._versions = len(versions)
        store.log(run, tags=tags)
        run.tags.update(tags)

    def _is_whole(self, study: str) -> bool:
        if self._copy.too_large and not self._warned:
            self._warned = True
            log.warning(
                "study %r: its journal is larger than %d bytes packed and is not copied to MLflow; keep the journal.",
                study,
                MAX_BYTES,
            )
        return not self._copy.too_large


def _version_files(latest: Noted | None, study_folder: Path, folder: Path) -> dict[str, str]:
    """Copies the files to ``folder``; returns the tags."""
    if latest is None:
        return {}
    source = study_folder / FOLDER
    for file in [source / VERSIONS, *source.glob("requirements-*.txt")]:
        (folder / file.name).write_bytes(file.read_bytes())
    tags, git = {"hpo.code_digest": latest.version.digest}, latest.version.git
    if git is not None:
        tags |= {"mlflow.source.git.commit": git.commit, "hpo.code_dirty": str(git.dirty).lower()}
    return tags
