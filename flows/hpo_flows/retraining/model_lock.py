"""One retraining at a time for each model: a lock in the home folder, which ends with the process that holds it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from hpo_core.home import Home
from hpo_core.security.lock_file import LockFile


class RetrainingBusyError(Exception):
    """Another run retrains the model; ``who`` says which."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who


@contextmanager
def only_retraining(home: Home, model: str, who: str) -> Iterator[None]:
    """Hold the lock of a model.

    The kernel gives it back when this process ends, also after ``kill -9``: nothing has to be cleaned up.

    Args:
        who: what others are told who ask meanwhile.

    Raises:
        RetrainingBusyError: another process holds it, or this one.
    """
    lock = LockFile(home.make_folder("retraining") / f"{model}.lock", f"the retraining of model {model!r}")
    try:
        if not lock.take(fcntl.LOCK_EX):
            raise RetrainingBusyError(lock.read() or "another run")
        lock.write(who)
        try:
            yield
        finally:
            lock.write("")
            lock.give_back()
    finally:
        lock.close()
