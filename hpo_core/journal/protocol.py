"""Journal: an append-only store of entries, and its errors.

An append is atomic and durable when it returns; it carries the sequence number and the epoch the writer
believes in, and is refused (:class:`~hpo_core.model.errors.FencedError`) when either is not the journal's own. So
of two controllers at most one can write, whatever both believe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import msgspec
import psutil

from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.errors import JournalError, StudyNotFoundError
from hpo_core.model.events import Entry
from hpo_core.model.short_text import did_you_mean

PER_KEY = 50
PER_OBJECTIVE = 10_000
MOST_WAITING = 1_000
"""Measurements that wait for a database that does not answer."""

_Key = tuple[str, str, str, str]

log = logging.getLogger("hpo.history")


class Measurements(Protocol):
    """Measurements of many studies."""

    def read(self, objective: str, code: str) -> list[Measurement]:
        """Read the measurements of one objective with this source, the oldest first.

        Raises:
            JournalError: the database does not answer, or is damaged.
        """
        ...

    def all(self) -> list[Measurement]:
        """Read all measurements, the oldest first.

        Raises:
            JournalError: as above.
        """
        ...

    def add(self, found: Sequence[Measurement]) -> int:
        """Keep these beside the others, and drop the oldest where there are too many. One that is there stays one.

        Returns:
            How many are new.

        Raises:
            JournalError: they could not be written; none was.
        """
        ...

    def forget(self, found: Collection[Measurement]) -> int:
        """Remove these; returns how many were there.

        Raises:
            JournalError: as above.
        """
        ...


def newest_first(one: Measurement) -> tuple[float, str]:
    return -one.measured_at, one.identity


class MemoryMeasurements:
    """Measurements in this process, as long as it runs; studies may run in several threads of it."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[_Key, Measurement]] = {}
        self._lock = threading.RLock()

    def read(self, objective: str, code: str) -> list[Measurement]:
        return [one for one in self.all() if (one.objective, one.code) == (objective, code)]

    def all(self) -> list[Measurement]:
        with self._lock:
            found = [one for _, one in self._kept.values()]
        return sorted(found, key=newest_first)[::-1]

    def add(self, found: Sequence[Measurement]) -> int:
        with self._lock:
            new = {one.identity: one for one in found if one.identity not in self._kept}
            keys = {identity: (one.objective, one.code, one.architecture, one.key) for identity, one in new.items()}
            self._kept |= {identity: (keys[identity], one) for identity, one in new.items()}
            for key in set(keys.values()):
                self._keep_newest([one for found, one in self._kept.values() if found == key], PER_KEY)
            for group in {key[0] for key in keys.values()}:
                self._keep_newest([one for found, one in self._kept.values() if found[0] == group], PER_OBJECTIVE)
        return len(new)

    def _keep_newest(self, found: list[Measurement], count: int) -> None:
        if len(found) > count:
            self.forget(sorted(found, key=newest_first)[count:])

    def forget(self, found: Collection[Measurement]) -> int:
        with self._lock:
            return sum(self._kept.pop(one.identity, None) is not None for one in found)


class QuietMeasurements:
    """Measurements for a study, which goes on where they cannot be read or written; the first failure is logged."""

    def __init__(self, kept: Measurements) -> None:
        self._kept = kept
        self._is_told = False
        self._waiting: list[Measurement] = []

    def read(self, objective: str, code: str) -> list[Measurement]:
        try:
            return self._kept.read(objective, code)
        except JournalError as error:
            self._tell("read", error)
            return []

    def add(self, found: Sequence[Measurement]) -> None:
        # Where that fails they are tried again with the next.
        self._waiting = [*self._waiting, *found][-MOST_WAITING:]
        try:
            if self._waiting:
                self._kept.add(self._waiting)
            self._waiting = []
        except JournalError as error:
            self._tell("written", error)

    def _tell(self, verb: str, error: JournalError) -> None:
        if not self._is_told:
            self._is_told = True
            log.warning("what jobs needed could not be %s, and the study goes on without: %s", verb, error)


class Owner(msgspec.Struct, frozen=True):
    """The process that drives a study; enough to tell on the same machine whether it still lives."""

    host: str
    pid: int
    born: float
    """When the process started (:mod:`hpo_core.journal.protocol`), so that a reused pid is not taken for it."""

    def label(self) -> str:
        return f"{self.host}:{self.pid}"

    def runs(self) -> bool:
        return lives(self.pid, self.born)


class StudyInfo(msgspec.Struct, frozen=True):
    """A line of ``hpo list``."""

    name: str
    created: float
    entries: int
    epoch: int
    owner: Owner | None
    """The last controller; None after it let go."""
    silent: float
    """Seconds since the owner's last sign of life, by the journal's own clock: those of two machines may differ."""


class Journal(Protocol):
    """An append-only store of entries, for many studies."""

    @property
    def measurements(self) -> Measurements:
        """Measured needs of jobs, kept beside the studies; ``MemoryMeasurements()`` where nothing is to stay."""
        ...

    def create(self, study: str, first: Entry) -> None:
        """Begin a study with its entry 0.

        Raises:
            StudyExistsError: the name is taken.
        """
        ...

    def append(self, study: str, entry: Entry) -> None:
        """Add ``entry`` durably.

        Raises:
            FencedError: ``entry.seq`` or ``entry.epoch`` is not what the journal expects.
            JournalUnavailableError: the database did not answer; it was written or it was not, and the same call
                made again tells (:mod:`hpo_core.journal.retrying`).
            JournalError: it could not be written; nothing was.
        """
        ...

    def entries(self, study: str, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        """Entries ``start <= seq < stop`` in order.

        Raises:
            StudyNotFoundError: no such study.
        """
        ...

    def info(self, study: str) -> StudyInfo:
        """Facts about one study.

        Raises:
            StudyNotFoundError: no such study.
        """
        ...

    def studies(self) -> list[StudyInfo]: ...

    def claim(self, study: str, owner: Owner, *, force: bool = False) -> int:
        """Become the only writer; returns the new epoch.

        Raises:
            StudyBusyError: another owner still lives, and ``force`` is not set.
        """
        ...

    def renew(self, study: str, epoch: int) -> None:
        """Give a sign of life.

        Raises:
            FencedError: somebody else claimed the study since.
        """
        ...

    def release(self, study: str, epoch: int) -> None: ...

    def close(self) -> None: ...


def damaged_entry(study: str, seq: int, error: Exception) -> JournalError:
    return JournalError(
        f"Study {study!r}: entry {seq} of its journal is damaged, or does not follow from those before it "
        f"({error_words(error)}). Restore the journal from a backup; `hpo show {study} --at {seq - 1}` still reads "
        "what comes before."
    )


def error_words(error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


LISTED = 20
"""Names that the message lists at most."""


UNKNOWN_CURE = "Check the name, and home (--home) or journal (--journal)."
"""Cure in the error about a study that a home does not know."""


def unknown_study(study: str, known: Sequence[str], place: str, cure: str) -> StudyNotFoundError:
    """The error to raise.

    Args:
        place: what holds the studies ``known``.

    >>> print(unknown_study("digit", ["digits", "texts"], "this journal", "Check the name."))
    Study 'digit' is not in this journal (it holds: digits, texts); did you mean 'digits'? Check the name.
    """
    stem = study.removesuffix(".yaml")
    meant = f"did you mean {stem!r}?" if stem != study and stem in known else did_you_mean(study, known)
    if stem != study:
        cure = f"Give the name that the file has under `study`. {cure}"
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    listed = ", ".join(known[:LISTED]) or "no study"
    where = f"Study {study!r} is not in {place} (it holds: {listed}{more})"
    return StudyNotFoundError(f"{where}; {meant} {cure}" if meant else f"{where}. {cure}")


def started(pid: int | None = None) -> float:
    """Seconds from the start of this computer to that of a process; None: this one.

    Setting the clock changes the time of day at which a process is said to have started, not this.

    Raises:
        psutil.Error: there is no such process.
    """
    boot = psutil.boot_time()  # read first: psutil below 7 computes with the one that was read last
    return float(psutil.Process(pid).create_time() - boot)


def lives(pid: int, born: float) -> bool:
    try:
        return abs(started(pid) - born) < 1.0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
