"""Removals: removes files of one study; those at a URL in a thread of its own.

A server that does not answer holds a request for minutes, and the thread that asks for the removal renews the study's
lease.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from hpo_core.checkpoints.storage import is_remote, remove

DRAIN_SECONDS = 60.0
"""Seconds that the end of a study waits for removals at a URL; what is left then, the next sweep removes."""


class Removals:
    """Removes files of one study, at once or, at a URL, one after the other in a background thread.

    Args:
        folder: of the study.
        base: folder or URL that the files must be below.
    """

    def __init__(self, folder: str | Path, base: str) -> None:
        self._folder, self._base = folder, base
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._at_once = not is_remote(base)

    def remove(self, uri: str) -> None:
        self.run(lambda: remove(self._folder, uri, self._base))

    def run(self, work: Callable[[], None]) -> None:
        """Call a function that removes files, where this class would remove one."""
        if self._at_once:
            work()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hpo-removals", daemon=True)
            self._thread.start()
        self._waiting.put(work)

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until what was asked for is done, at most so long."""
        if self._thread is not None:
            done = threading.Event()
            self._waiting.put(done.set)
            done.wait(seconds)

    def _work(self) -> None:
        while True:
            self._waiting.get()()
