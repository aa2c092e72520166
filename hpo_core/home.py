"""Where a user's studies lie: journal, checkpoints, logs, reports, and the embedded services' files.

The folder is one user's: made with mode 0700, its files with 0600, and what is wider is narrowed at first use. Below it
no symbolic link is followed and nothing of another user's is written to (:mod:`hpo_core.security.private_files`).

HPO_HOME                  folder of journal, checkpoints, logs and reports; default ``.hpo`` in the working folder
HPO_JOURNAL               SQLAlchemy URL of the journal; default: SQLite in the home
HPO_DATABASE              URL of one PostgreSQL database for journal and MLflow, instead of two SQLite files
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpo_core.model.errors import SpecError, StorageError
from hpo_core.model.features import FEATURES, feature
from hpo_core.model.file_urls import checked_text, sqlite_url, working_folder
from hpo_core.security.masking import add_secrets_of
from hpo_core.security.private_files import beside, check_file, check_folder, open_private, private_folder
from hpo_core.spec import StudySpec

if TYPE_CHECKING:
    from hpo_core.journal.protocol import Journal
    from hpo_core.journal.sql import SqlJournal


DATABASES = ("HPO_JOURNAL", "HPO_DATABASE", "MLFLOW_TRACKING_URI")
"""Settings that name a database, and so may name a file."""

_DATABASES_OF_OTHERS = ("mlflow.db",)
"""Files that MLflow writes in a home, beside its artifacts. It follows links, so each is looked at before."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CURE = "Choose another with --home or HPO_HOME."


def is_name(name: str) -> bool:
    """True if a study can have this name."""
    return _NAME.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """The name of a study, checked before any path is made from it.

    Raises:
        SpecError: no study can have this name (it might be a path).
    """
    if not is_name(name):
        raise SpecError(
            f"{name[:200]!r} is no name of a study: a name begins with a letter or digit and has letters, digits, '.', "
            "'_' and '-', 100 at most. `hpo list` shows the names there are."
        )
    return name


class Home:
    """A folder (``--home``, ``HPO_HOME``, or ``.hpo`` here) and the journal (``--journal``, ``HPO_JOURNAL``).

    ``HPO_DATABASE`` is one PostgreSQL database for both journal and MLflow, in place of two SQLite files. Layout::

        journal.db                    all studies
        studies/NAME/checkpoints/     trial-00007/rung-2-attempt-3.safetensors
        studies/NAME/logs/            output of every attempt
        studies/NAME/dask-scratch-space/  scratch files of Dask's processes
        studies/NAME/report.html
        compared/                     pages of `hpo compare`
        mlflow.db  mlartifacts/       MLflow, unless another server is named
        prefect/                      the temporary Prefect API, unless another one is configured
        worker/                       what Prefect's runner stores for `hpo worker`
    """

    def __init__(self, folder: str | Path | None = None, journal: str | None = None) -> None:
        given = folder or os.environ.get("HPO_HOME")
        here = working_folder()
        self._default = None if given else here / ".hpo"
        self.folder = (here / (given or ".hpo")).resolve()
        sqlite_url(self.folder, "Home folder", _CURE)
        for name in DATABASES:
            checked_text(os.environ.get(name, ""), name, "Name another database.")
        self._database = os.environ.get("HPO_DATABASE")
        if journal:
            add_secrets_of(journal)
        self._journal = journal or os.environ.get("HPO_JOURNAL") or self._database
        checked_text(self._journal or "", "Journal", "Name another database.")

    @property
    def is_default(self) -> bool:
        """True if another process finds it without being told: by its environment, or in the working folder."""
        return self.folder == Path(os.environ.get("HPO_HOME") or ".hpo").resolve()

    @property
    def journal_url(self) -> str:
        return self._journal or sqlite_url(self.folder / "journal.db")

    def open_journal(self) -> SqlJournal:
        """The journal of all studies.

        Raises:
            JournalError: it cannot be opened or created.
        """
        from hpo_core.journal.sql import open_journal

        file = self._journal_file
        if file is not None:
            self.make_folder()
            self._check_database(file)
        return open_journal(self.journal_url)

    def read_journal(self) -> Journal:
        """The journal for a command that only reads; nothing is created, and the folder may be read-only.

        Where there is none it is empty.

        Raises:
            JournalError: it cannot be opened.
        """
        file = self._journal_file
        if file is not None and not file.exists():
            from hpo_core.journal.memory import MemoryJournal
            from hpo_core.journal.protocol import UNKNOWN_CURE

            return MemoryJournal(f"{self.folder}, which has no journal", UNKNOWN_CURE)
        from hpo_core.journal.sql import open_journal

        return open_journal(self.journal_url, reading=True)

    @property
    def _journal_file(self) -> Path | None:
        """The journal in this folder; None where another one is named."""
        file = self.folder / "journal.db"
        return file if self.journal_url == sqlite_url(file) else None

    def make_folder(self, *parts: str) -> Path:
        """The home folder, or one below it, made or made private.

        Raises:
            StorageError: it cannot be made, is a link, or belongs to somebody else.
        """
        if self._default is not None:
            # Nobody named it: it may have come with a downloaded project, or be planted in a folder such as /tmp.
            check_folder(self._default)
            if self._default.exists() and self._default.lstat().st_uid != os.geteuid():
                raise StorageError(
                    f"Folder {self._default} belongs to user {self._default.lstat().st_uid}, not to the one who runs "
                    "this. Name it with --home or HPO_HOME if it is to be used all the same, or choose another."
                )
        made = private_folder(self.folder.joinpath(*parts), below=self.folder)
        check_folder(self.folder / "mlartifacts")
        for name in _DATABASES_OF_OTHERS:
            self._check_database(self.folder / name)
        return made

    def _check_database(self, file: Path) -> None:
        for side in ("", "-journal", "-wal", "-shm"):
            check_file(file.with_name(file.name + side))

    def study_folder(self, name: str, *, create: bool = False) -> Path:
        """Folder of one study's files.

        Raises:
            SpecError: no study can have this name.
            StorageError: it is to be created and cannot be.
        """
        folder = self.folder / "studies" / checked_name(name)
        if create:
            for part in ("checkpoints", "logs"):
                self.make_folder("studies", name, part)
            probe = beside(folder / "writable")
            try:
                with open_private(probe, "wb") as file:
                    file.write(b"0" * 4096)
                probe.unlink()
            except OSError as error:
                raise StorageError(
                    f"Study folder {folder} cannot be written ({error.strerror}). Free space or make it writable, "
                    "or choose another home with --home or HPO_HOME."
                ) from None
        return folder

    def import_folders(self, spec: StudySpec) -> list[str]:
        """Folders that a study's objective is imported from; never this one, where others than its author write.

        Checkpoints, downloads and scratch files of training lie here, and a module among them would be run.
        """
        return [entry for entry in spec.pythonpath if not Path(entry).resolve().is_relative_to(self.folder)]

    def study_links(self, name: str) -> dict[str, str]:
        """Links by title to the copies of a study, where it has any."""
        folder, found = self.study_folder(name), dict[str, str]()
        return feature("MLflow", "tracker_links").study_links(folder) if "MLflow" in FEATURES else found

    def report_path(self, name: str) -> Path:
        return self.study_folder(name) / "report.html"

    def comparison_path(self, names: Sequence[str]) -> Path:
        """Path of the page that compares these studies, the same in any order of names; its folder is made."""
        names = sorted(map(checked_name, names))
        digest = hashlib.sha256("/".join(names).encode()).hexdigest()[:8]
        return self.make_folder("compared") / f"{names[0]}-and-{len(names) - 1}-more-{digest}.html"

    @property
    def default_tracking_uri(self) -> str:
        """MLflow of this home: that of ``MLFLOW_TRACKING_URI``, else in the one database, else a SQLite file."""
        given = os.environ.get("MLFLOW_TRACKING_URI") or self._database
        return given or sqlite_url(self.folder / "mlflow.db")

    def tracking_uri(self, spec: StudySpec) -> str | None:
        """MLflow tracking URI of a study; None where tracking is off."""
        return None if spec.tracking.mlflow == "off" else self.default_tracking_uri

    def artifact_location(self, spec: StudySpec) -> str | None:
        """Artifact folder for an embedded MLflow; None where a server decides."""
        uri = self.tracking_uri(spec)
        return None if uri is None else self.artifacts_at(uri)

    def artifacts_at(self, tracking_uri: str) -> str | None:
        """Artifact folder for the MLflow at ``tracking_uri`` where it is embedded; None where a server decides."""
        embedded = tracking_uri == self._database or tracking_uri.startswith("sqlite:")
        return (self.folder / "mlartifacts").as_uri() if embedded else None
