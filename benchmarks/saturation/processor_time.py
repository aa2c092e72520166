"""Processor time of other processes, and processes that end with their measurement."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping

import psutil


def cpu_of(pid: int) -> float:
    """Seconds that a process and all its children, ended ones too, have used."""
    process = psutil.Process(pid)
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += sum(one.cpu_times()[:4])
    return total


@contextlib.contextmanager
def started(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """``python ARGUMENTS`` as long as this is open, and what it started; its number."""
    children: list[psutil.Process] = []
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        yield process.pid
    finally:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
        for child in children:  # MLflow's server leaves some behind
            with contextlib.suppress(psutil.Error):
                child.kill()
