"""``hpo check``: exact functions pass, others are told what differs and why, through real children and checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpo_core.model.trial import Job, Rung
from hpo_core.training.resume_check import ResumeCheck, check_resume, different_metrics, different_parts
from tests.conftest import make_spec
from tests.job_requests import make_request

FUNCTIONS = """
import itertools, os, random, sys, time
import numpy as np
import hpo_core

class Walk:
    def __init__(self): self.place = np.zeros(3)
    def state_dict(self): return {"place": self.place.copy()}
    def load_state_dict(self, state): self.place = state["place"].copy()
    def step(self, by=0.0): self.place += np.random.random(3) + by; return float(self.place.sum())

def exact(trial):
    walk, state = Walk(), hpo_core.State(best=1e9, rate=trial.params.get("lr", 0.1))
    trial.track(walk=walk, state=state)
    for _ in trial.steps():
        state.best = min(state.best, -walk.step(state.rate))
        trial.report(loss=state.best)

def cycles(trial):
    walk, numbers = Walk(), itertools.cycle([1.0, 2.0, 3.0])
    trial.track(walk=walk)
    for _ in trial.steps():
        trial.report(loss=walk.step(next(numbers)))

def by_target(trial):
    walk = Walk()
    trial.track(walk=walk)
    for _ in trial.steps():
        trial.report(loss=walk.step(1.0 / trial.target))

def unseeded(trial):
    walk = Walk()
    trial.track(walk=walk)
    for _ in trial.steps():
        trial.report(loss=walk.step(np.random.default_rng().random()))

def unused(trial):
    walk, rng = Walk(), random.Random(1)
    trial.track(walk=walk)
    for _ in trial.steps():
        rng.random()
        trial.report(loss=walk.step())

def fits(trial):
    trial.report(loss=1.0 / trial.target)

def limited(trial):
    walk = Walk()
    trial.track(walk=walk)
    if trial.target > 5:
        raise ValueError("no more than 5 epochs")
    for _ in trial.steps():
        trial.report(loss=walk.step())

class Environment:
    def __init__(self, seed):
        self._np_random = np.random.default_rng(seed)

def environment(trial):
    walk, env = Walk(), [Environment(trial.seed)]
    trial.track(walk=walk)
    for _ in trial.steps():
        trial.report(loss=walk.step(env[0]._np_random.random()))

def fails(trial):
    raise ValueError("no \\x1b[2J data")

def needs(trial):
    print(trial.params["lr"])

def ends(trial):
    os._exit(3)

def optuna(trial):
    x = trial.suggest_float("x", 0.0, 1.0)
    for epoch in range(9):
        trial.report(x + random.random(), epoch)
        if trial.should_prune():
            break
    return x
"""


def run_check(folder: Path, *arguments: str, code: int, text: str = FUNCTIONS) -> str:
    (folder / "checked.py").write_text(text)
    command = [sys.executable, "-m", "hpo_flows", "check", *arguments]
    environment = os.environ | {"HPO_HOME": str(folder / "home"), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_exact_function(tmp_path: Path) -> None:
    said = run_check(tmp_path, "checked:exact", "--params", "lr=0.5", code=0)
    assert "exact over 27 steps, with resumes at 1, 3, 9 (tracked: walk, state)" in said
    assert "lr = 0.5" in said and "causes" not in said and "not seen" not in said
    told = ("starts 2 processes", "trains from 0 to 3", "trains again from 0 to 27", "trains with resumes, 0 to 1 to 3")
    assert all(words in said for words in told), "it was silent for 16 seconds"
    assert not (tmp_path / "home").exists()


def test_iterator_across_steps_is_found(tmp_path: Path) -> None:
    facts = json.loads(run_check(tmp_path, "checked:cycles", "--steps", "4", "--json", code=1).partition("checked:")[0])
    assert not facts["repeated"] and not facts["exact"] and not facts["by_target"]
    assert [difference["name"] for difference in facts["resumed"]] == ["walk", "metric loss"]
    assert facts["resumed"][1]["what"].startswith("from step 2 on: ")
    assert "Something that the loop changes" in facts["causes"][0] and "itertools.cycle" in facts["causes"][1]


def check(folder: Path, function: str, **how: Any) -> ResumeCheck:
    (folder / "own_checked.py").write_text(FUNCTIONS)
    request = make_request(
        study="check",
        job=Job(0, 0, Rung(0, 0), 1, {}),
        objective=f"own_checked:{function}",
        metric="",
        required="none",
        folder="",
        pythonpath=(str(folder),),
    )
    return check_resume(request, folder / "check", **how)


@pytest.mark.slow
def test_state_that_changed_and_is_not_saved_is_no_proof(tmp_path: Path) -> None:
    """Its value was needed in none of these steps; nobody knows of the next."""
    said = run_check(tmp_path, "checked:unused", "--steps", "3", code=1)
    assert "not proven: the same bits over 3 steps, but not all that changed is saved:\n  - rng (random Random)" in said
    assert "exact over" not in said


@pytest.mark.slow
def test_one_report_at_the_target_is_not_resumed(tmp_path: Path) -> None:
    """As `fit` and boosting report: each job has another target, so that its report is no fault of a resume."""
    said = run_check(tmp_path, "checked:fits", code=1)
    assert "twice from scratch: the same bits" in said
    assert "not resumed: nothing is tracked, so each job trains from the start again" in said
    assert "causes" not in said and "All tracked objects" not in said


@pytest.mark.slow
def test_a_function_with_a_limit_of_its_own_is_checked_below_it(tmp_path: Path) -> None:
    found = check(tmp_path, "limited")
    assert found.exact and found.steps == 3 and "no more than 5 epochs" in found.no_longer


def test_the_generator_of_an_environment_is_found(tmp_path: Path) -> None:
    found = check(tmp_path, "environment")
    assert not found.warnings and "a random generator of a loader or an environment" in found.causes[0]


@pytest.mark.slow
def test_other_reasons_are_told_apart(tmp_path: Path) -> None:
    assert "depends on the job's target" in run_check(tmp_path, "checked:by_target", code=1)
    said = run_check(tmp_path, "checked:unseeded", code=1)
    assert "twice from scratch: differs in" in said and "A random generator without a seed" in said
    plain = make_spec().plain() | {"objective": "checked:optuna", "style": "optuna", "pythonpath": ["."]}
    space = {"x": {"type": "float", "low": 0.0, "high": 1.0}}
    (tmp_path / "study.yaml").write_text(json.dumps(plain | {"space": space}))
    said = run_check(tmp_path, "study.yaml", code=0)
    assert "with resumes at 1, 3, 9 (tracked: optuna)" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("fails", "ValueError: no \\x1b[2J data"),
        ("needs", "KeyError: 'lr'"),
        ("needs", "Is it a parameter? Then give it a value: --params lr=VALUE"),
        ("ends", "exited by itself with code 3"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_what_cannot_run_has_its_own_exit_code(function: str, words: str, tmp_path: Path) -> None:
    said = run_check(tmp_path, f"checked:{function}", code=2)
    assert words in said and "\x1b" not in said


@pytest.mark.slow
def test_the_length_is_that_of_the_study_file(tmp_path: Path) -> None:
    plain = make_spec().plain() | {"objective": "checked:exact", "pythonpath": ["."]}
    for search in (plain["search"], {"method": "random", "configs": 2}):  # of which no length is stated
        (tmp_path / "study.yaml").write_text(json.dumps(plain | {"search": search}))
        assert "steps, with resumes at 1, 3, 9 (tracked: walk, state)" in run_check(tmp_path, "study.yaml", code=0)


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"a": [1, 2.0, "x", None], "b": np.arange(3.0)}, {"a": [1, 2.0, "x", None], "b": np.arange(3.0)}, []),
        ({"a": float("nan")}, {"a": float("nan")}, []),
        ({"a": 0.0, "b": 1}, {"a": -0.0, "b": True}, ["a: 0.0 and -0.0", "b: 1 and True"]),
        ({"a": {"b": (1, 2), "c": 1}}, {"a": {"b": (1, 3), "c": 1}}, ["a.b"]),
        ({"a": 1}, {"b": 1}, [""]),
        ({"a": np.zeros(2)}, {"a": np.zeros(3)}, ["a"]),
        ({"a": torch.ones(2, 2)}, {"a": torch.tensor([[1, 1], [1, 3.0]])}, ["a"]),
        ({"a": torch.ones(2, dtype=torch.bfloat16)}, {"a": torch.ones(2, dtype=torch.bfloat16)}, []),
    ],
)
def test_parts_that_differ(one: Any, other: Any, found: list[str]) -> None:
    assert list(different_parts(one, other)) == found


def test_metrics_differ_from_a_step_on() -> None:
    one = {1: {"loss": 0.5, "seconds": 1.0}, 2: {"loss": 0.25}, 3: {"loss": 0.1}}
    other = {1: {"loss": 0.5, "seconds": 2.0}, 2: {"loss": 0.26}, 3: {}}
    assert different_metrics(one, other) == {"seconds": (1, 1.0, 2.0), "loss": (2, 0.25, 0.26)}
    assert different_metrics(one, one) == {}
