"""Training functions that gain, or do not, when more of them run at once; no tests in here."""

from __future__ import annotations

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
    """Needs one of two processors all the time: more jobs than two get their part of them, by the clock.

    They do not compute in truth, so that a busy machine changes nothing.
    """
    (trial.folder.parent / f"computes-{trial.number}").touch()
    time.sleep(0.5)  # start-up, which is left out: until then the others are here
    due = time.monotonic()
    for _ in trial.steps():
        jobs = len(list(trial.folder.parent.glob("computes-*")))
        due += UNIT * max(1.0, jobs / 2)
        time.sleep(max(0.0, due - time.monotonic()))
        trial.report(loss=trial.params["x"])


def fails(trial):
    raise ValueError("no such data")


def ends_at_once(trial):
    for _ in trial.steps():
        trial.report(loss=trial.params["x"])
