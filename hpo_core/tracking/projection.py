"""One-way copies of a study elsewhere, and the lock that allows one process for each.

A projection is one way (nothing it holds is ever read back into a study), rebuildable (from the entries alone),
written by one process at a time, and never needed for a study to go on.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import ClassVar

from hpo_core.model.errors import HpoError, JournalError
from hpo_core.model.events import Entry
from hpo_core.security.private_files import LockFile
from hpo_core.tracking.copy_progress import CopyProgress, note_progress

CHUNK = 500
"""Entries taken in at once while catching up."""
_NOTED_SECONDS = 0.5
"""Time between two notes of how far it is."""


class ProjectionBusyError(HpoError):
    """Another process, still alive, projects the study to the same place."""

    exit_code = 5


class Projection(ABC):
    """A copy of one study in a tracker.

    A process feeds it the journal once from entry 0, then what is new::

        projection.project(journal.entries(name))
        while driven:
            projection.project(journal.entries(name, projection.next_seq))
        projection.finish()

    Any call may raise whatever the tracker raises; calling it again later loses and doubles nothing: what was folded
    is kept, and what the tracker holds is looked up anew.

    Args:
        study_name: of the study.
        tracking_uri: of the tracker.
        study_folder: folder of the study; holds the lock.
        target: name of the place that is copied to, for the lock.
    """

    tracker: ClassVar[str]
    """Name of the tracker for people."""

    def __init__(self, study_name: str, tracking_uri: str, study_folder: str | Path, *, target: str) -> None:
        self.study_name = study_name
        self.tracking_uri = tracking_uri
        self.study_folder = Path(study_folder)
        self.has_controller = True
        self.lock = ProcessLock.of(self.study_folder, target)
        self.deleted = False
        """Whether somebody deleted the copy, so that nothing was written."""
        self._anew = False
        """A rebuild is under way."""
        self._looked_up = False
        self.progress = CopyProgress()
        """Noted last."""
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

    def _note_trials(self, copied: int) -> None:
        self._copied = copied
        if time.monotonic() - self._noted_at >= _NOTED_SECONDS:
            self.note()

    @property
    def written_seq(self) -> int:
        return -1 if self._cursor is None else self._cursor

    @property
    @abstractmethod
    def url(self) -> str | None:
        """Page of the copy, or the command that serves one; None before there is something."""

    def project(self, entries: Iterable[Entry], *, rebuild: bool = False, length: int | None = None) -> int:
        """Copy what is new; returns how many entries the tracker did not hold before.

        Args:
            entries: in order; those before :attr:`next_seq` are skipped.
            rebuild: begin again at entry 0, and make anew what a user deleted.
            length: number of entries of the whole journal, where ``entries`` go up to its end.

        Raises:
            JournalError: an older journal was put back: the tracker holds another history.
            ProjectionBusyError: another process projects this study.
            JournalError: entries are missing or out of order.
            Exception: whatever the tracker raises; call again later.
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
                raise self._diverged(f"{self.tracker} holds entries up to {self.written_seq}, the journal has {length}")
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
        self.created: float | None = None
        """Time of entry 0; None before it was taken in."""
        self._cursor: int | None = None
        self._expected = ""
        """Digest of the journal that the tracker holds, as of the cursor that was found there."""
        self._digest = b""
        self._disconnect()

    def _diverged(self, how: str) -> JournalError:
        return JournalError(
            f"Study {self.study_name!r}: {how}. An older journal was put back, it seems. Delete the study's runs in "
            f"{self.tracker} (tags.`hpo.study` = '{self.study_name}'); `hpo project {self.study_name} --rebuild` makes "
            "them anew."
        )

    def _take_in(self, entry: Entry) -> None:
        if entry.seq != self.next_seq:
            raise JournalError(
                f"Projection: entry {entry.seq} was given where entry {self.next_seq} is next. "
                "Give the journal's entries in order and without a gap."
            )
        self._fold_in(entry)
        if self.created is None:
            self.created = entry.time
        self.next_seq += 1
        facts = [entry.seq, repr(entry.time), entry.epoch, *(type(event).__name__ for event in entry.events)]
        self._digest = hashlib.sha256(self._digest + repr(facts).encode()).digest()
        self._look_up()
        if entry.seq == self.written_seq and self._expected not in ("", self._digest.hex()) and not self.deleted:
            raise self._diverged(f"what {self.tracker} holds up to entry {entry.seq} is not what the journal holds")
        if entry.seq <= self.written_seq:
            self._clear_changes()

    def _look_up(self) -> None:
        if not self._looked_up:
            self._find_copy()
            self._looked_up = True

    def _write(self) -> None:
        self._look_up()
        self._write_changes()
        self._cursor = self.next_seq - 1
        self._clear_changes()
        self._copied = self.trials
        self.note()

    @property
    @abstractmethod
    def trials(self) -> int:
        """Trials that were read of the journal."""

    @abstractmethod
    def _connect(self) -> None:
        """Open the tracker, unless it is open."""

    def _disconnect(self) -> None:
        # Forget what the tracker holds: after an error nobody knows whether the last call took place.
        self._looked_up = False

    @abstractmethod
    def _find_copy(self) -> None:
        """Find the copy; set :attr:`_cursor` and :attr:`_expected` to what stands there, unless a cursor is known."""

    @abstractmethod
    def _fold_in(self, entry: Entry) -> None:
        """Take in the next entry, and remember what changed."""

    @abstractmethod
    def _clear_changes(self) -> None:
        """Forget what changed: the tracker holds it."""

    @abstractmethod
    def _write_changes(self) -> None:
        """Write what changed since the cursor, and the cursor last."""

    @abstractmethod
    def _write_end(self) -> None:
        """Write what stands in the copy of a study that nobody drives."""


class ProcessLock:
    """A lock on a file, which names the process that holds it; the kernel frees it when its process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: LockFile | None = None

    @classmethod
    def of(cls, folder: Path, target: str) -> ProcessLock:
        """The lock for projecting the study in ``folder`` to ``target``."""
        return cls(folder / f".projection-{hashlib.sha256(target.encode()).hexdigest()[:12]}.lock")

    def take(self, *, wait: bool = False) -> None:
        """Take the lock; harmless where this object holds it.

        Raises:
            ProjectionBusyError: another process holds it (never with ``wait``).
            StorageError: the folder cannot be written.
        """
        if self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = LockFile(self.path, "the copy of a study", cure="make its folder writable")
        try:
            if wait:
                fcntl.flock(file.fd, fcntl.LOCK_EX)
            elif not file.take(fcntl.LOCK_EX):
                raise ProjectionBusyError(
                    f"{self.path}: process {file.read().strip() or 'unknown'} projects this study already, and one at "
                    "a time may. It catches up by itself; to do it by hand, end that process first."
                )
        except BaseException:
            file.close()
            raise
        file.write(f"{os.getpid()}\n")
        self._file = file

    def holder(self) -> int | None:
        """Process that holds the lock; None where nobody does, or it left no number."""
        if not self.path.exists():
            return None
        file = LockFile(self.path, "the copy of a study")
        try:
            if file.take(fcntl.LOCK_EX):
                return None
            found = file.read().strip()
            return int(found) if found.isdecimal() else None
        finally:
            file.close()

    def free(self) -> None:
        """Free the lock; harmless where this object does not hold it."""
        if self._file is not None:
            self._file.close()
            self._file = None
