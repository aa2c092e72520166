"""ModelsAtOnce: how many configurations of a study whose models hop train at once."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from hpo_core.spec import StudySpec, all_at_once, create_method

log = logging.getLogger(__name__)
FOR_EACH_WORKER = 2
"""Configurations for each worker where the search asks for them by results, or a sampler learns from these."""
MOST = 1_000
"""More cost more than they save: with 1,000 models on eight workers 16 at once end 0.7 % later than all, and a decision
among all takes a millisecond."""
STATES = 3
"""Files of one model at once: at the end of its last epoch, of its last unit, and the one being written."""
PART_OF_DISK = 0.5
"""Of what is free: the rest is for checkpoints and logs."""


class ModelsAtOnce:
    """As many as ``data.concurrent`` says; else by the outline of the search, and what the disk has room for.

    A model that waits for its next unit is a file in the study's folder, and takes no memory of a worker.

    Args:
        spec: of the study.
        folder: of the study; None: there are no files (a simulation).
    """

    def __init__(self, spec: StudySpec, folder: Path | None) -> None:
        data = spec.data
        assert data is not None
        self._given = data.concurrent
        self._all = create_method(spec).grantable(MOST) if self._given is None and all_at_once(spec) else 0
        self._folder = folder
        self._largest = 0
        """Bytes of the largest state that was seen; 0: none was."""
        self._said = False

    def note_state(self, size: int) -> None:
        """A model's state was written."""
        self._largest = max(self._largest, size)

    def count(self, workers: int, *, begun: int) -> int:
        """So many configurations may train at once; 0 without a worker.

        Args:
            begun: those under way that have written a state.
        """
        if not workers:
            return 0
        if self._given is not None:
            return self._given
        few = FOR_EACH_WORKER * workers
        return max(few, self._room(few, begun))

    def _room(self, few: int, begun: int) -> int:
        """Of all configurations, so many as the disk has room for."""
        if self._all <= few or self._folder is None:
            return self._all
        if not self._largest:  # nobody knows yet how large a state is
            return few
        free = shutil.disk_usage(self._folder).free
        room = begun + int(PART_OF_DISK * free / (STATES * self._largest))
        if room >= self._all:
            return self._all
        room = max(few, 1 << room.bit_length() >> 1)  # a power of two: what is free changes all the time
        if not self._said:
            self._said = True
            log.warning(
                "%d of %d models train at once: each may need %d files of %.1f MB, and the disk of %s has %.1f MB "
                "free; free some of it, or set data.concurrent.",
                room, self._all, STATES, self._largest / 1e6, self._folder, free / 1e6,
            )  # fmt: skip
        return room
