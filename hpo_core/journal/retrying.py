"""RetryingJournal: waits for its database, so that a failover of 10 to 30 seconds ends no study.

What is tried again, for ``seconds`` after the first failure: whatever the journal beneath calls
``JournalUnavailableError``, that is a lost or refused connection, a server that starts or shuts
down, a standby that is still read-only, a locked database, an error of the disk, a full one (somebody may free space
within the minute). Never tried again: a fence, a name that is taken or unknown, a damaged or missing entry, a wrong
password, missing tables or permissions.

An append whose answer was lost may have been made. Made again, it is refused by its sequence number; then the entry
that stands there is read, and where it is ours to the last byte (it holds epoch and time) all is well. Anything else
there is another controller's: the fence holds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from hpo_core.journal.codec import encode_entry
from hpo_core.journal.protocol import Journal, Measurements, Owner, StudyInfo
from hpo_core.model.errors import FencedError, HpoError, JournalUnavailableError, StudyExistsError
from hpo_core.model.events import Entry
from hpo_core.model.stopwatch import Stopwatch

RETRY_SECONDS = 60.0
"""Seconds for which a journal that cannot be reached (failover, lock, full disk) is tried again."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_LONGEST_CALL = 35.0
"""Seconds after which the database's driver gives up; what takes longer between two calls is a standstill of ours."""

T = TypeVar("T")
log = logging.getLogger("hpo.journal")


class RetryingJournal:
    """Calls another journal again while it cannot be reached.

    An interrupt during the wait is raised, and from then on each call is made once: what still writes is the study's
    halt.

    Args:
        journal: the journal that is asked.
        seconds: how long after the first failure a call is tried again; 0: never.
    """

    def __init__(self, journal: Journal, seconds: float = RETRY_SECONDS) -> None:
        self.wrapped = journal
        self.seconds = seconds

    def __str__(self) -> str:
        return str(self.wrapped)

    @property
    def measurements(self) -> Measurements:
        return self.wrapped.measurements

    def _with_retries(self, study: str, call: Callable[[bool], T]) -> T:
        failing: Stopwatch | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = call(failing is not None)
            except JournalUnavailableError as error:
                if failing is None:
                    failing = Stopwatch(_LONGEST_CALL, time.monotonic)
                    if self.seconds > 0:
                        log.warning("study %r: %s Tried again for %g s.", study, error, self.seconds)
                left = self.seconds - failing.elapsed()
                if left <= 0:
                    raise
                try:
                    time.sleep(min(pause, left))
                except BaseException:
                    self.seconds = 0.0
                    raise
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                if failing is not None:
                    log.warning("study %r: the journal answers again after %.1f s.", study, failing.elapsed())
                return answer

    def create(self, study: str, first: Entry) -> None:
        self._write(self.wrapped.create, StudyExistsError, study, first)

    def append(self, study: str, entry: Entry) -> None:
        self._write(self.wrapped.append, FencedError, study, entry)

    def _write(self, write: Callable[[str, Entry], None], refusal: type[HpoError], study: str, entry: Entry) -> None:
        # Write an entry; where the answer was lost, a refusal may come of the entry itself that stands there.

        def call(again: bool) -> None:
            try:
                write(study, entry)
            except refusal:
                there = next(iter(self.wrapped.entries(study, entry.seq, entry.seq + 1)), None) if again else None
                if there is None or encode_entry(there) != encode_entry(entry):
                    raise

        self._with_retries(study, call)

    def entries(self, study: str, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        if stop is None:
            stop = self.info(study).entries  # as of now, however long the reading takes
        following = start
        source = self._with_retries(study, lambda _: self.wrapped.entries(study, following, stop))

        def advance(again: bool) -> Entry | None:
            nonlocal source
            if again:  # a generator that raised is at its end
                source = self.wrapped.entries(study, following, stop)
            return next(source, None)

        while (entry := self._with_retries(study, advance)) is not None:
            following += 1
            yield entry

    def info(self, study: str) -> StudyInfo:
        return self._with_retries(study, lambda _: self.wrapped.info(study))

    def studies(self) -> list[StudyInfo]:
        return self._with_retries("", lambda _: self.wrapped.studies())

    def claim(self, study: str, owner: Owner, *, force: bool = False) -> int:
        """A claim whose answer was lost is made again, and takes one epoch more: the owner is the same."""
        return self._with_retries(study, lambda _: self.wrapped.claim(study, owner, force=force))

    def renew(self, study: str, epoch: int) -> None:
        self._with_retries(study, lambda _: self.wrapped.renew(study, epoch))

    def release(self, study: str, epoch: int) -> None:
        self.wrapped.release(study, epoch)

    def close(self) -> None:
        self.wrapped.close()
