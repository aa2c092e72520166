"""Ctrl-C at any moment of a start: one sentence and exit code 130, and never a traceback of ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from hpo_flows.study_run import in_prefect
from tests.flows.conftest import LIMIT, Runner


def started(hpo: Runner) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell starts a command."""
    file = hpo.study("slow", search={"method": "random", "configs": 40, "max_resource": 2}, prefect="off")
    return subprocess.Popen(
        [sys.executable, "-m", "hpo_flows", "tune", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=hpo.environment, cwd=hpo.folder,
        process_group=0,
    )  # fmt: skip


def interrupted(process: subprocess.Popen[str]) -> str:
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err and err.strip().splitlines()[-1].startswith("Interrupted"), out + err
    return err


def maps(process: subprocess.Popen[str], word: str) -> bool:
    return word in Path(f"/proc/{process.pid}/maps").read_text()


def opened(process: subprocess.Popen[str], word: str) -> bool:
    return any(word in file.path for file in psutil.Process(process.pid).open_files())


MOMENTS: dict[str, Callable[[subprocess.Popen[str]], bool]] = {
    "while the commands are imported": lambda process: maps(process, "pydantic_core"),
    "while the study is made": lambda process: opened(process, "journal.db"),
    "while workers start": lambda process: bool(psutil.Process(process.pid).children()),
}


@pytest.mark.parametrize(
    "moment", [pytest.param(one, marks=pytest.mark.slow if one == "while workers start" else ()) for one in MOMENTS]
)
def test_an_interrupted_start_is_a_sentence(moment: str, tmp_path: Path) -> None:
    process = started(Runner(tmp_path, {}))
    deadline = time.monotonic() + LIMIT
    while not MOMENTS[moment](process):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)
    interrupted(process)


def test_a_start_that_takes_long_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_prefect, "STILL_SECONDS", 0.01)
    begun, said = threading.Event(), list[str]()

    def inform(words: str) -> None:
        said.append(words)
        if len(said) == 2:
            begun.set()

    in_prefect._say_that_it_starts(cast(Any, SimpleNamespace(begun=begun, inform=inform)))
    assert said == ["still starting, 0 s so far ..."] * 2
