"""Studies with ``packing`` that the command drives, and judges that share no code with what they judge."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import HpoError
from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.replay.audit import audit

ROOT = Path(__file__).parents[2]
LIMIT = 900
MB = 1_000_000


class Packed:
    """A study with ``packing`` in a folder of its own, driven by the command."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, **study: Any) -> None:
        self.folder = folder
        self.home = Home(folder / "home")
        self.environment = (environment or dict(os.environ)) | {"HPO_HOME": str(self.home.folder), "HOME": str(folder)}
        plain: dict[str, Any] = {
            "study": "packed",
            "pythonpath": [str(ROOT)],
            "metric": {"name": "loss"},
            "cluster": {"kind": "local", "workers": 2},
            "prefect": "off",
            "tracking": {"mlflow": "off"},
        }
        (folder / "study.yaml").write_text(yaml.safe_dump(plain | study))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "hpo_flows", *words],
            cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *words: str, code: int = 0) -> str:
        process = self.start(*words)
        said, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == code, said
        return said

    def ended(self) -> list[JobCompleted | AttemptFailed]:
        try:
            journal = self.home.read_journal()
        except HpoError:
            return []
        try:
            entries = list(journal.entries("packed"))
        except HpoError:
            return []
        finally:
            journal.close()
        return [event for entry in entries for event in entry.events if isinstance(event, JobCompleted | AttemptFailed)]

    def study(self) -> Study:
        journal = self.home.read_journal()
        study = Study.open("packed", journal, reading=True)
        assert audit(journal.entries("packed")).clean
        journal.close()
        return study


def until(found: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LIMIT
    while not found():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.05)


def usage(event: JobCompleted | AttemptFailed) -> Usage:
    assert isinstance(event.usage, Usage), event
    return event.usage


def measured(events: Sequence[JobCompleted | AttemptFailed]) -> set[int | None]:
    """Memory that attempts were seen to hold of their card; on a busy computer nobody may look in half a second."""
    found = {usage(event).device_memory for event in events if event.ended - event.started > 0.7}
    return found | ({usage(event).device_memory for event in events} - {None})


def most_at_once(events: list[JobCompleted | AttemptFailed]) -> int:
    moments = sorted([(event.started, 1) for event in events] + [(event.ended, -1) for event in events])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most


def check_shares(events: list[JobCompleted | AttemptFailed], memory: dict[str, int]) -> None:
    """At each moment the shares on a device together exceed neither its memory nor its compute."""
    for device, limit in memory.items():
        here = [event for event in events if usage(event).device == device and event.started]
        for moment in [event.started for event in here]:
            shares = [usage(event).share or (1000, limit, 0) for event in here if event.started <= moment < event.ended]
            assert sum(share[1] for share in shares) <= limit
            assert sum(share[0] for share in shares) <= 1000


class Judge:
    """Looks again and again, in a thread, at what is held in truth.

    Args:
        look: amounts that are held now, by name.
    """

    def __init__(self, look: Callable[[], dict[str, int]]) -> None:
        self._look = look
        self.looks = 0
        """At which something was held."""
        self.most: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> Judge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._ended.wait(0.005):
            found = self._look()  # one that fails ends the looks, and the test by their number
            for name, amount in found.items():
                self.most[name] = max(self.most.get(name, 0), amount)
            self.looks += any(found.values())


def resident(pid: int) -> int:
    """Anonymous memory of all trainings below a process: a judge that shares no code with the one that measures."""
    total = 0
    try:
        family = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return 0
    parents = {process.pid for process in family if is_zygote(process)}
    for process in family:
        try:
            if process.ppid() in parents:
                full = process.memory_full_info()
                total += full.uss
        except psutil.Error:
            continue
    return total


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def is_zygote(process: psutil.Process) -> bool:
    return "hpo_core.training.child.zygote" in _words(process)
