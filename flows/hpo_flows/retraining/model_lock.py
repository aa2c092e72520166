"""One retraining at a time for each model: a lock in the home folder, which ends with the process that holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from hpo_core.home import Home
from hpo_flows.prefect_api.shared_server import LockFile


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
    lock = LockFile(home.make_folder("retraining") / f"{model}.lock")
    try:
        if not lock.take(fcntl.LOCK_EX):
            raise RetrainingBusyError(os.pread(lock.fd, 1000, 0).decode(errors="replace") or "another run")
        os.ftruncate(lock.fd, 0)
        os.pwrite(lock.fd, who.encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(lock.fd, 0)
            lock.give_back()
    finally:
        lock.close()
