"""Real services for the tests of flows: ``hpo`` as a subprocess."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_flows.command import app
from tests.nvml_stub.cards import GIB, Cards, build

ROOT = Path(__file__).parents[2]
LIMIT = 600
"""Seconds for one command: a machine at a load of 40 needs minutes for what takes ten seconds."""


def at_load(seconds: float) -> float:
    """A bound that holds on an idle machine, longer by the share of a processor that is left at the load of now."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in for NVIDIA's management library."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    """Two cards of different size."""
    cards = Cards(tmp_path / "cards")
    cards.put("GPU-large", memory=80 * GIB)
    cards.put("GPU-small", name="Tesla V100-PCIE-32GB", memory=32 * GIB)
    return cards


READING = frozenset({"audit", "export", "list", "show", "status"})
"""Commands that start nothing: called in this process, as a process of their own imports for a second or two."""


class Runner:
    """Runs ``hpo`` in a folder of its own.

    Args:
        prefect: what its study files say of Prefect: the pages of a study cost as much as the study.
    """

    def __init__(self, folder: Path, environment: dict[str, str], *, prefect: str = "off") -> None:
        self.folder = folder
        self.prefect = prefect
        self.home = folder / "home"
        self.environment = os.environ | environment | {
            "HPO_HOME": str(self.home), "HOME": str(folder), "COLUMNS": "200",
        }  # fmt: skip

    def study(self, function: str = "good", **changes: Any) -> Path:
        """A study file; JSON is YAML."""
        plain: dict[str, Any] = {
            "study": "toy",
            "objective": f"tests.flows.objectives:{function}",
            "pythonpath": [str(ROOT)],
            "metric": {"name": "loss", "mode": "min"},
            "space": {"x": {"type": "float", "low": -1.0, "high": 1.0}},
            "search": {
                "method": "asha", "configs": 12, "min_resource": 1, "max_resource": 9, "reduction_factor": 3,
            },
            "seed": 1,
            "cluster": {"kind": "local", "workers": 2},
            "tracking": {"mlflow": "off"},
            "prefect": self.prefect,
        }  # fmt: skip
        path = self.folder / "study.yaml"
        path.write_text(json.dumps(plain | changes))
        return path

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "hpo_flows", *map(str, arguments)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment, cwd=self.folder
        )

    def __call__(self, *arguments: str | Path, code: int = 0) -> str:
        if arguments[0] in READING and not code:
            return self.here(*arguments)
        process = self.start(*arguments)
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        return out + err if code else out

    def json(self, *arguments: str | Path, code: int = 0) -> Any:
        if arguments[0] in READING and not code:
            return json.loads(self.here(*arguments, "--json"))
        process = self.start(*arguments, "--json")
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        return json.loads(out)

    def here(self, *arguments: str | Path, code: int = 0) -> str:
        """The same in this process: for what starts nothing, or is refused before it does."""
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(app, [str(word) for word in arguments], env=self.environment)
        if isinstance(done.exception, HpoError):
            assert done.exception.exit_code == code, done.exception
            return f"{done.output}{done.exception}"
        assert done.exit_code == code, (done.exception, done.output)
        return done.output if code else done.stdout


@pytest.fixture
def hpo(tmp_path: Path, prefect_api: dict[str, str]) -> Runner:
    return Runner(tmp_path, prefect_api)


@pytest.fixture
def make_hpo(prefect_api: dict[str, str]) -> Callable[[Path], Runner]:
    return lambda folder: Runner(folder, prefect_api)


def wait_for_entries(
    hpo: Runner, study: str, count: int, process: subprocess.Popen[str], seconds: float = LIMIT
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (hpo.home / "journal.db").exists():
            journal = Home(hpo.home).open_journal()
            known = {info.name: info.entries for info in journal.studies()}
            journal.close()
            if known.get(study, 0) >= count:
                return
        if process.poll() is not None:
            raise AssertionError(process.communicate())
        time.sleep(0.1)
    raise AssertionError(f"{study} made no {count} entries in {seconds:g} s")


def server_file(hpo: Runner, process: subprocess.Popen[str], seconds: float = LIMIT) -> Path:
    """Names the Prefect server of the home, whose process has begun."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for file in (hpo.home / "prefect").glob("server-*.json"):
            if file.read_text():
                return file
        if process.poll() is not None:
            raise AssertionError(process.communicate())
        time.sleep(0.1)
    raise AssertionError(f"no Prefect server in {hpo.home} after {seconds:g} s")
