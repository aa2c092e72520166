"""Training functions that gain, or do not, when more of them run at once; no tests in here."""

from __future__ import annotations

import os
import time

from hpo_core.training.child import shared_progress

UNIT = 0.01


class Clock:
    """The clock by which units are measured: each takes what it says, however long the machine lets a job wait."""

    def __init__(self):
        self.at = None
        self._zygote = os.getpid()

    def monotonic(self):
        if os.getpid() == self._zygote:
            return time.monotonic() + 1e6  # whatever a job says has been
        return time.monotonic() if self.at is None else self.at

    def __getattr__(self, name):
        return getattr(time, name)

    def end(self, at):
        """A unit ends, as of this moment."""
        time.sleep(UNIT)
        self.at = at


CLOCK = shared_progress.time = Clock()


def dispatch(trial):
    """One zygote for all: parameter ``do`` names the function."""
    globals()[trial.params["do"]](trial)


def waits(trial):
    """Mostly waits, as for a disk or a network."""
    began = CLOCK.at = time.monotonic()
    for step in trial.steps():
        CLOCK.end(began + step * UNIT)
        trial.report(loss=trial.params["x"])


def computes(trial):
    """Needs one of two processors all the time: more jobs than two get their part of them.

    They do not compute in truth, so that a busy machine changes nothing: from the beginning each unit takes what it
    takes beside all that are here by now.
    """
    (trial.folder.parent / f"computes-{trial.number}").touch()
    began = CLOCK.at = time.monotonic()
    for step in trial.steps():
        jobs = len(list(trial.folder.parent.glob("computes-*")))
        CLOCK.end(began + step * UNIT * max(1.0, jobs / 2))
        trial.report(loss=trial.params["x"])


def fails(trial):
    raise ValueError("no such data")


def ends_at_once(trial):
    for _ in trial.steps():
        trial.report(loss=trial.params["x"])
