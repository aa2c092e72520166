"""Which partitions of the data lie on this worker, looked at in the background."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from hpo_core.model.partition_file import PartitionFile, Signature, folder_here
from hpo_core.partitioning.holdings import Holdings

LOOK_SECONDS = 2.0
"""How old an answer may be before the files are looked at again."""
FIRST_SECONDS = 2.0
"""How long the first look may take for its answer to be waited for."""

Held = tuple[list[int], dict[str, str], int, bool]
"""Places of the partitions that lie here; by name, why others that are here cannot be used; a number that is larger for
each look, and each doubt, than for those before, also where this process is started again; and whether a partition is
being read now, which may then count."""


class _Watched:
    """The partitions of one study."""

    def __init__(self, folder: str, files: Sequence[PartitionFile]) -> None:
        self.asked = folder, tuple(files)
        self._places = {file.name: place for place, file in enumerate(files)}
        self.holdings = Holdings(folder_here(folder, os.environ), files)
        self._lock = threading.Lock()
        self._changes = threading.Lock()
        """Held while ``held`` is changed: a doubt must not be forgotten for a look that ends at the same moment."""
        self._doubts = 0
        self._looked = -float("inf")
        self.held: tuple[list[int], dict[str, str], int] = ([], {}, 0)
        self.known = threading.Event()
        """Set once the first look has ended."""

    def look(self, *, only_if_old: bool = False) -> None:
        """Look at the files now, unless another thread does."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if only_if_old and not self._is_old():  # another thread has looked since this one was started
                return
            while True:  # a file that was looked at may have been replaced since, and doubted
                doubts = self._doubts
                found = self.holdings.look()
                with self._changes:
                    if doubts != self._doubts:
                        continue
                    self._say(sorted(self._places[name] for name in found.names), dict(found.problems))
                    self._looked = time.monotonic()
                self.known.set()
                return
        finally:
            self._lock.release()

    def look_soon(self) -> None:
        """Have the files looked at in the background, where the last look is old."""
        if self._is_old() and not self._lock.locked():
            look = threading.Thread(
                target=self.look, kwargs={"only_if_old": True}, name="look-at-partitions", daemon=True
            )
            look.start()

    def _is_old(self) -> bool:
        return time.monotonic() >= self._looked + LOOK_SECONDS

    def doubt(self, name: str) -> int:
        """Say no more that this one lies here, until it was read again; a look that goes on begins anew.

        Returns:
            The number of what is said from now on.
        """
        with self._changes:
            self._doubts += 1
            self.holdings.doubt(name)
            places, problems, _ = self.held
            self._say([place for place in places if place != self._places.get(name)], problems)
            self._looked = -float("inf")
            number = self.held[2]
        self.look_soon()
        return number

    def _say(self, places: list[int], problems: dict[str, str]) -> None:
        self.held = places, problems, max(self.held[2] + 1, time.time_ns())


_watched: dict[str, _Watched] = {}
"""Watched partitions by folder of their study."""


def watch_partitions(study_folder: str, folder: str, files: Sequence[PartitionFile]) -> None:
    """Say from now on which of these files lie here.

    The first look computes digests, which may take long: it goes on in the background, and nothing is said before it
    has ended. Who asks again meanwhile, or later, does not make it begin anew.

    Args:
        study_folder: of the study, which tells studies apart.
        folder: of the partitions, unless the environment of this process says otherwise.
    """
    watched = _watched.get(study_folder)
    if watched is None or watched.asked != (folder, tuple(files)):
        watched = _watched[study_folder] = _Watched(folder, files)
    watched.look_soon()
    watched.known.wait(FIRST_SECONDS)


def held_partitions() -> dict[str, Held]:
    """What lay here at the last look, by folder of the study. Returns at once."""
    studies = dict(_watched)
    for watched in studies.values():
        watched.look_soon()
    return {
        folder: (*watched.held, watched.holdings.reading)
        for folder, watched in studies.items()
        if watched.known.is_set()
    }


def seen_signature(study_folder: str, name: str) -> Signature | None:
    """The file that was looked at when a partition was said to lie here; None: nothing is known that it must be."""
    watched = _watched.get(study_folder)
    return None if watched is None else watched.holdings.signatures.get(name)


def doubt_partition(study_folder: str, name: str) -> int:
    """A partition was gone, or another file: it counts again once it was read again.

    Returns:
        The number of what is said of the study's partitions from now on.
    """
    watched = _watched.get(study_folder)
    return 0 if watched is None else watched.doubt(name)


def forget_partitions(study_folder: str) -> None:
    """Look no more for the partitions of a study."""
    _watched.pop(study_folder, None)
