"""The history of what jobs needed, beside the journal's studies.

One row is one measurement, so that studies which write at the same time lose nothing of each other's. The newest
:data:`PER_KEY` of each key (objective, code, architecture, deciding parameters) are kept, and :data:`PER_OBJECTIVE` of
each objective. It is a cache: a study goes on without it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from typing import Protocol

from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.errors import JournalError

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

    def forget(self, found: Collection[Measurement] | None) -> int:
        """Remove these, or all and what is damaged where it is None; returns how many were there.

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

    def forget(self, found: Collection[Measurement] | None) -> int:
        with self._lock:
            found = self.all() if found is None else found
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
