"""Parent watch: a flow process sends heartbeats, and halts its study when the worker that started it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from uuid import UUID

import psutil

from hpo_flows.liveness.heartbeat_files import BEAT_SECONDS, beat

GRACE_SECONDS = 45.0
"""How long a study may take to halt. The profiles give their worker 60 seconds and more."""
CHECK_SECONDS = 0.2
WATCHED = "HPO_WORKER"
"""Environment of a flow process: pid and start time of its worker."""


def end_with_worker() -> None:
    """Watch the worker that started this flow process; once it has ended, halt as an interrupt does.

    Without a worker of ours (the command line, another work pool) nothing is watched.
    """
    if WATCHED not in os.environ:
        return
    pid, born = os.environ.pop(WATCHED).split()  # once; and nothing that is started from here is the worker's child
    threading.Thread(target=_watch, args=(int(pid), float(born)), name="worker-watch", daemon=True).start()


def _watch(pid: int, born: float) -> None:
    home, run = Path(os.environ["HPO_HOME"]), UUID(os.environ["PREFECT__FLOW_RUN_ID"])
    due = time.monotonic()
    while _lives(pid, born):
        if time.monotonic() >= due:
            beat(home, run)
            due = time.monotonic() + BEAT_SECONDS
        time.sleep(CHECK_SECONDS)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # pipes that the worker read: a line written now would raise where nobody expects it
        os.dup2(nowhere, stream)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _lives(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - born) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
