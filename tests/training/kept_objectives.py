"""Training functions that leave something behind, for processes that stay; no tests in here."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import threading
from typing import Any

import numpy as np
import torch

counter = 0
MEMO: dict[int, int] = {}
HASHER = hashlib.md5()


class Net:
    calls = 0


def remember() -> None:
    """What many ordinary modules do: a counter, a memo, an object whose state Python does not show."""
    global counter
    counter += 1
    Net.calls += 1
    MEMO[counter] = counter
    HASHER.update(b"seen")


def set_handlers() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(3600)


def set_deterministic() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = True


def begin_process() -> None:
    subprocess.Popen(["sleep", "600"])


def begin_daemon_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def set_environment() -> None:
    os.environ["SEEN"] = "1"
    os.environ["TZ"] = "Asia/Tokyo"
    del os.environ["HOME"]


CHANGES = {
    "nothing": lambda: None,
    "globals": remember,
    "environment": set_environment,
    "folder": lambda: os.chdir("/"),
    "handlers": set_handlers,
    "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}),
    "threads": lambda: torch.set_num_threads(3),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "gradients": lambda: torch.set_grad_enabled(False),
    "deterministic": set_deterministic,
    "draws": lambda: (random.random(), np.random.random(), torch.rand(3)),
    "thread": begin_daemon_thread,
}
LEFT = {"process": begin_process}
"""After these the process ends."""


def seen() -> list[Any]:
    handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)]
    return [
        sorted(os.environ),
        [os.environ.get(name) for name in ("SEEN", "TZ", "HOME")],
        os.getcwd(),  # noqa: PTH109
        list(map(str, handlers)),
        signal.getitimer(signal.ITIMER_REAL),
        sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        torch.get_num_threads(),
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        random.random(),
        float(np.random.random()),
        torch.rand(3).tolist(),
    ]


def train(trial: Any) -> None:
    """Print what it sees, then change what ``do`` names."""
    print(seen())
    for _ in trial.steps():
        trial.report(loss=float(counter))
    (CHANGES | LEFT)[trial.params["do"]]()
