"""A real Slurm for the tests of this folder, and the command `hpo` as its users start it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core.home import Home
from hpo_core.model.events import Event
from hpo_core.replay.audit import audit
from tests.slurm.one_node import NODE, PACKAGES, OneNodeSlurm, missing_tools

ROOT = Path(__file__).parents[2]
_started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(scope="session")
def one_node() -> Iterator[OneNodeSlurm]:
    """Skips where Slurm is not installed."""
    if missing := missing_tools():
        pytest.skip(f"Slurm is not installed here ({', '.join(missing)} missing): {PACKAGES}")
    pytest.importorskip("dask_jobqueue", reason="extra 'slurm' is not installed")
    folder = Path(tempfile.mkdtemp(prefix="hpo-slurm-"))  # tmp_path is too long for a Unix socket
    slurm = OneNodeSlurm(folder)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm(one_node: OneNodeSlurm) -> Iterator[OneNodeSlurm]:
    """An idle node before each test; no job is left after it."""
    yield one_node
    while _started:  # of a test that failed: it would submit its jobs again
        process = _started.pop()
        if process.poll() is None:
            process.kill()
            process.wait()
    if one_node.node_state() not in ("idle", "mix", "alloc", "comp"):
        one_node.call("scontrol", "update", f"NodeName={NODE}", "State=RESUME")
    for job in one_node.jobs():
        one_node.call("scancel", job)
    wait_for(lambda: not one_node.jobs() and one_node.node_state() == "idle", "the node is idle again")


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.2)


class SlurmStudy:
    """A study file in a home of its own, and the commands started on it.

    Args:
        folder: of the home; the study's name is the same in all homes.
        slurm: where its jobs run.
        pause: seconds a step of training takes.
        worker_timeout: seconds without a heartbeat after which a worker counts as gone.
        search: the method's settings beside its rungs.
        cluster: settings beyond the kind.
    """

    name = "digits"

    def __init__(
        self,
        folder: Path,
        slurm: OneNodeSlurm,
        *,
        pause: float = 0.2,
        worker_timeout: float = 60,
        search: dict[str, Any] | None = None,
        **cluster: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.home = folder / "home"
        self._slurm = slurm
        self._log = folder / "log"
        self._file = folder / "study.yaml"
        study = {
            "study": self.name,
            "objective": "tests.slurm.objectives:paced",
            "pythonpath": [str(ROOT)],
            "metric": {"name": "loss"},
            "space": {
                "x": {"type": "float", "low": -1.0, "high": 1.0},
                "pause": {"type": "categorical", "choices": [pause]},
            },
            "search": {"min_resource": 1, "max_resource": 9, "reduction_factor": 3}
            | (search or {"method": "asha", "configs": 12}),
            "seed": 3,
            "cluster": {"kind": "slurm", "workers": 2, "memory": "1GB"} | cluster,
            "training": {"worker_timeout": worker_timeout},
            "tracking": {"mlflow": "off"},
        }  # fmt: skip
        self._file.write_text(json.dumps(study))  # YAML, too

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        given = command or ("tune", str(self._file), "--no-prefect")
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "hpo_flows", *given, "--home", str(self.home)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, start_new_session=True,
                env=os.environ | self._slurm.environment,
            )  # fmt: skip
        _started.append(process)
        return process

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for_words(self, words: str) -> None:
        wait_for(lambda: words in self.said, f"{words!r} in:\n{self.said}")

    def ends_well(self, process: subprocess.Popen[bytes]) -> None:
        """The command succeeds, the audit is clean and no job of the study is left."""
        assert process.wait(400) == 0, self.said
        journal = Home(self.home).read_journal()
        assert audit(list(journal.entries(self.name))).clean
        journal.close()
        logs = self.home / "studies" / self.name / "logs" / "slurm"
        mine = {file.stem.rpartition("-")[2] for file in logs.iterdir()}
        wait_for(lambda: not mine & set(self._slurm.jobs()), "the study's jobs have left the queue", 60)

    def facts(self, kind: type[Any]) -> list[Any]:
        return [event for event in self._events() if isinstance(event, kind)]

    def _events(self) -> list[Event]:
        journal = Home(self.home).read_journal()
        try:
            return [event for entry in journal.entries(self.name) for event in entry.events]
        finally:
            journal.close()
