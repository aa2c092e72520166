"""A real study with seed repeats: enqueued to while it runs, its controller killed within a job, resumed."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_core.replay.audit import audit

SCRIPT = """
import random, time
import hpo_core

def train(trial):
    kept = hpo_core.State(sum=0.0)
    trial.track(kept=kept)
    for step in trial.steps():
        time.sleep(0.1)
        kept.sum += random.random()
        trial.report(loss=trial.params["x"] + kept.sum)
"""
STUDY = """
study: killed
objective: train_repeats:train
metric: {name: loss}
space: {x: {type: float, low: 0.0, high: 1.0}}
search: {method: asha, configs: 24, max_resource: 9, reduction_factor: 3}
cluster: {kind: local, workers: 2}
prefect: off
tracking: {mlflow: "off"}
"""


def until(found: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_a_controller_killed_within_a_job_of_several_repeats(tmp_path: Path) -> None:
    (tmp_path / "train_repeats.py").write_text(SCRIPT)
    (tmp_path / "study.yaml").write_text(STUDY)
    home = Home(tmp_path / "home")
    environment = os.environ | {"HPO_HOME": str(home.folder), "PREFECT_HOME": str(tmp_path / "prefect")}
    hpo = [sys.executable, "-m", "hpo_flows"]

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*hpo, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def study() -> Study:
        return Study.open("killed", home.read_journal(), reading=True)

    def jobs() -> int:
        try:
            return study().state.completed_jobs
        except HpoError:  # not there yet
            return 0

    command = [*hpo, "tune", "study.yaml", "--repeats", "3"]
    with (tmp_path / "log").open("wb") as log:
        controller = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: controller.poll() is not None or jobs() >= 3)
        assert controller.poll() is None, (tmp_path / "log").read_text()
        assert "enqueued in killed" in run("enqueue", "killed", "--params", "x=0.0625")
        files = home.study_folder("killed") / "checkpoints"
        until(lambda: bool(list(files.glob("*/*.repeat-1"))))
    finally:
        controller.send_signal(signal.SIGKILL)
        controller.wait()
    run("resume", "killed")
    ended = study()
    assert ended.finished and audit(home.read_journal().entries("killed")).clean
    assert any(trial.params["x"] == 0.0625 and trial.queued for trial in ended.state.trials)
    assert not list(files.glob("*/*.repeat-*")), "parts of the killed attempts are gone"
    assert ended.state.failed_attempts > 0
    for trial in ended.state.trials:
        sums = []
        for repeat in range(3):
            draws = random.Random(ended.spec.training_seed(trial.number, repeat))
            sums.append([draws.random() for _ in range(9)])
        for result in trial.results:
            expected = []
            for drawn in sums:
                total = 0.0
                for value in drawn[: result.resource]:
                    total += value
                expected.append({"loss": trial.params["x"] + total})
            assert result.repeats == tuple(expected)
            assert result.metrics["loss"] == statistics.mean(one["loss"] for one in expected)
