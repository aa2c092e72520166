from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from tests.training import zygote_watch
from tests.training.zygote_watch import be_seen

zygote_watch.install()

MB = 1_000_000
INHERITED = np.ones(80 * MB // 8)
"""Made in the zygote; a child shares it until it writes."""


def take(megabytes):
    return np.ones(int(megabytes * MB) // 8)


def burn(seconds):
    """So much processor time, however busy the machine is."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def hold(megabytes, ready, go):
    taken = take(megabytes)
    ready.set()
    go.wait(600)
    return taken


def dispatch(trial):
    globals()[trial.params["do"]](trial)


def known(trial):
    time.sleep(trial.params.get("startup", 0.0))
    kept = take(trial.params.get("mb", 0))
    be_seen(trial.params.get("looks", 0))
    began_at, began, first = time.time(), time.monotonic(), 0.0
    for _ in trial.steps():
        first = first or time.monotonic()
        burn(trial.params.get("cpu", 0.0))
        time.sleep(trial.params.get("sleep", 0.0))
        last = time.monotonic()
    wall = time.monotonic() - began
    trial.report(loss=float(kept.sum()), began_at=began_at, wall=wall, inner=last - first)


def writes_what_it_inherited(trial):
    for _ in trial.steps():
        if trial.params["write"]:
            INHERITED[:] += 1
        be_seen()
    trial.report(loss=0.0)


def _be_seen_with(count, megabytes, looks):
    """While so many processes of its own hold so much."""
    context = get_context("fork")
    go, ready = context.Event(), [context.Event() for _ in range(count)]
    workers = [context.Process(target=hold, args=(megabytes, one, go)) for one in ready]
    for worker in workers:
        worker.start()
    for one in ready:
        one.wait(600)
    be_seen(looks)
    go.set()
    for worker in workers:
        worker.join()


def starts_processes(trial):
    for _ in trial.steps():
        _be_seen_with(2, trial.params["mb"], 1)
    trial.report(loss=0.0)


def shares_with_processes(trial):
    """As a loader with workers does: they were forked, and read what is there."""
    kept = take(trial.params["mb"])
    for _ in trial.steps():
        _be_seen_with(4, 0, 3)
    trial.report(loss=float(kept[0]))


def grows(trial):
    """Takes more and more, and is seen each time."""
    kept = []
    for _ in trial.steps():
        for _ in range(int(trial.params["mb"] / 45)):
            kept.append(take(45))
            be_seen()
    trial.report(loss=0.0)


def at_once(trial):
    for _ in trial.steps():
        take(trial.params["mb"])
    trial.report(loss=0.0)


def native_library(trial):
    """A C++ library gets no memory, and nobody catches what it throws."""
    for _ in trial.steps():
        ctypes.CDLL("libstdc++.so.6")._Znwm(ctypes.c_size_t(int(trial.params["mb"] * MB)))
    trial.report(loss=0.0)


def killed(trial):
    kept = take(trial.params["mb"])
    be_seen()
    os.kill(os.getpid(), signal.SIGKILL)
    return kept


def minibatches(trial):
    """Counts iterations, then waits for a file; its one unit ends long after its profile."""
    kept = take(trial.params["mb"])
    for _ in trial.steps():
        for _ in range(trial.params["iterations"]):
            trial.iteration()
        while not Path(trial.params["file"]).exists():
            time.sleep(0.02)
        if "then" in trial.params:
            more = take(trial.params["then"])
            be_seen(2)  # and, where it is too much, ended for it before the second look
            del more
    trial.report(loss=float(kept[0]))


def threads(trial):
    from threadpoolctl import threadpool_info

    torch = sys.modules.get("torch")
    for _ in trial.steps():
        pass
    pools = {pool["num_threads"] for pool in threadpool_info()}
    trial.report(
        loss=0.0,
        blas=min(pools, default=0),
        torch=torch.get_num_threads() if torch else 0,
        omp=int(os.environ["OMP_NUM_THREADS"]),
    )
