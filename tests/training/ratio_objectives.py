"""Training functions that gain, or do not, when more of them run at once; no tests in here."""

from __future__ import annotations

import fcntl
import os
import time

UNIT = 0.01


def dispatch(trial):
    """One zygote for all: parameter ``do`` names the function."""
    globals()[trial.params["do"]](trial)


def waits(trial):
    """Mostly waits, as for a disk or a network."""
    for _ in trial.steps():
        time.sleep(UNIT)
        trial.report(loss=trial.params["x"])


def computes(trial):
    """Needs one of two processors for all of each unit; these are locks, so that a busy machine changes nothing."""
    file = os.open(trial.folder.parent / f"processor-{trial.number % 2}", os.O_RDWR | os.O_CREAT)
    for _ in trial.steps():
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(UNIT)
        fcntl.flock(file, fcntl.LOCK_UN)
        trial.report(loss=trial.params["x"])


def fails(trial):
    raise ValueError("no such data")


def ends_at_once(trial):
    for _ in trial.steps():
        trial.report(loss=trial.params["x"])
