"""Ctrl-C while ``hpo_core.tune`` runs: one is enough, the study goes on later, no process is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import hpo_core as hpo
from tests.flows.conftest import LIMIT
from tests.waiting import eventually, living

SCRIPT = """
import signal, sys, time
import hpo_core as hpo

def say(word):
    print(word, flush=True)

def train(trial):
    for step in trial.steps():
        time.sleep(0.05)
        trial.report(loss=trial.params["x"])

def tell(report):
    say("report")

try:
    say("calls")
    hpo.tune(
        train, {"x": hpo.Float(0, 1)}, metric="loss", max_trials=int(sys.argv[1]), workers=2, name="study",
        home=sys.argv[2], prefect="off", tracking=hpo.Tracking(mlflow="off"), progress=False, callbacks=[tell],
    )
    say("ended")
except KeyboardInterrupt as error:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # more may come after the call
    say("interrupted")
    print(*error.__notes__, flush=True)
"""
MARK = "HPO_TEST_PROCESS_MARK"


class Script:
    """A script that tunes, with a process group of its own, as a terminal starts it."""

    def __init__(self, folder: Path, trials: int) -> None:
        (folder / "script.py").write_text(SCRIPT)
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "script.py"), str(trials), str(folder / "home")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            env=os.environ | {MARK: self.mark},
        )

    def wait_for(self, word: str) -> None:
        """Read what it prints up to a line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"it never said {word!r}: {self.process.communicate()[1]}")

    def interrupt(self) -> None:
        """Ctrl-C: a signal to all processes of the group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> str:
        """What it still says; fails where it does not end, or where a process of it is left."""
        said, errors = self.process.communicate(timeout=LIMIT)
        eventually(lambda: not self.left(), said=self.left)
        assert self.process.returncode == 0, errors
        return said + errors

    def left(self) -> list[psutil.Process]:
        return living(MARK, self.mark)


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[list[Script]]:
    started: list[Script] = []
    yield started
    for script in started:
        for process in script.left():
            process.kill()
        script.process.communicate()


@pytest.mark.parametrize("phase", [pytest.param("start", marks=pytest.mark.slow), "run"])
def test_one_interrupt_halts_the_study_and_a_resume_ends_it(phase: str, tmp_path: Path, scripts: list[Script]) -> None:
    script = Script(tmp_path, trials=12)
    scripts.append(script)
    script.wait_for("calls" if phase == "start" else "report")
    if phase == "start":
        eventually(psutil.Process(script.process.pid).children)  # its cluster starts
    script.interrupt()
    said = script.end()
    assert "interrupted" in said
    assert "ended" not in said
    home = tmp_path / "home"
    assert f"hpo.resume('study', home='{home}')" in said
    assert "Traceback" not in said
    assert hpo.load("study", home).status == ("open" if phase == "start" else "halted")
    result = hpo.resume("study", home=home, progress=False)
    assert result.status == "finished"
    assert len(result.trials) == 12
    assert sorted(result.results["trial"]) == list(range(12))  # nothing twice


@pytest.mark.slow
def test_interrupts_while_it_ends_are_ignored(tmp_path: Path, scripts: list[Script]) -> None:
    script = Script(tmp_path, trials=20)
    scripts.append(script)
    script.wait_for("report")
    errors, answers = script.process.stderr.fileno(), b""
    while answers.count(b"being stopped") < 3:  # impatience, but not beyond the call: then the script would have it
        script.interrupt()
        if select.select([errors], [], [], 0.02)[0]:
            answers += (answer := os.read(errors, 65536))
            assert answer, "it ended before it was interrupted three times more"
    said = script.end()
    assert "interrupted" in said
    assert hpo.load("study", tmp_path / "home").status == "halted"
