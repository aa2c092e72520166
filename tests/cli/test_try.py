"""``hpo try``: one trial in this process, whatever the training function does; and the parameters it gets."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hpo_core.execution.in_process import completed_params, parse_params
from hpo_core.model.errors import SpecError
from hpo_core.model.space import SearchSpace
from hpo_flows.command import app
from tests.conftest import make_spec

FUNCTIONS = """
import os, sys
def good(trial):
    for step in trial.steps():
        trial.report(loss=trial.params["x"] / (step + 1))
def exits(trial):
    sys.exit("enough")
def raises(trial):
    def inner(depth):
        if not depth:
            raise RuntimeError("deep \\x1b[2J")
        inner(depth - 1)
    inner(30)
def silent(trial):
    for _ in trial.steps():
        pass
def debugged(trial):
    for _ in trial.steps():
        answer = 6 * 7
        breakpoint()
        trial.report(loss=answer)
"""
SPACE = {
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "c": {"type": "categorical", "choices": ["a", "b", "1"]},
    "d": {"type": "int", "low": 1, "high": 64, "when": {"c": "a"}},
}


def study_file(folder: Path, function: str = "good", **changes: Any) -> Path:
    name = f"tried_{abs(hash(str(folder))):x}"  # the tests share one process, and so its modules
    (folder / f"{name}.py").write_text(FUNCTIONS)
    plain = make_spec(space=SPACE, search={"method": "random", "configs": 3, "max_resource": 5}).plain()
    path = folder / "study.yaml"
    path.write_text(json.dumps(plain | {"objective": f"{name}:{function}", "pythonpath": ["."]} | changes))
    return path


def hpo_try(file: Path, *arguments: str, input: str = "", code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["try", str(file), *arguments], input=input, env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_metrics_of_each_step_are_shown_and_nothing_is_left(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    output = hpo_try(file, "--params", "x=0.5", "c=b", "--steps", "2").output
    assert "unit 2 of 2 is done" in output and "unit 1: loss = 0.5\nunit 2: loss = 0.25\ncompleted in" in output
    assert "x = 0.5" in output and "c = 'b'" in output and "d = " not in output
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.name != "__pycache__") == [".py", ".yaml"]


@pytest.mark.parametrize("gang", [2, "auto"])
def test_a_study_of_gangs_is_tried_in_one_process(tmp_path: Path, gang: int | str) -> None:
    file = study_file(tmp_path, training={"gang": gang}, cluster={"kind": "local", "workers": 2})
    assert "unit 1: loss" in hpo_try(file, "--steps", "1").output


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", ["in raises\n", "RuntimeError: deep \\x1b[2J"]),
        ("exits", ["SystemExit: enough", "its trial fails with this"]),
    ],
)
def test_failures_have_the_whole_traceback_of_the_users_code(function: str, words: list[str], tmp_path: Path) -> None:
    output = hpo_try(study_file(tmp_path, function), code=1).output
    assert all(word in output for word in words)
    assert "run_attempt" not in output and "\x1b" not in output
    if function == "raises":
        assert output.count("in inner\n") >= 4


def test_metric_that_is_missing_is_our_message_without_a_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["try", str(study_file(tmp_path, "silent"))])
    assert "Metric 'loss' was not reported at the target" in str(result.exception)
    assert "Traceback" not in result.output


def test_breakpoint_opens_the_debugger_of_this_terminal(tmp_path: Path) -> None:
    file = study_file(tmp_path, "debugged")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hpo_flows", "try", str(file), "--steps", "1"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        read_until(ours, b"(Pdb)")
        os.write(ours, b"p answer\n")
        assert b"42" in read_until(ours, b"(Pdb)")
        os.write(ours, b"c\n")
        assert b"unit 1: loss = 42" in read_until(ours, b"completed")
        assert process.wait(600) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(descriptor: int, wanted: bytes, seconds: float = 300) -> bytes:
    found, deadline = b"", time.monotonic() + seconds
    while wanted not in found and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 1.0)[0]:
            found += os.read(descriptor, 4096)
    assert wanted in found, found
    return found


def completed(drawn: dict[str, Any], **given: str) -> dict[str, Any]:
    return completed_params(SearchSpace(make_spec(space=SPACE).space), given, drawn, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"y": "1"}, "params: 'y' is no parameter of the space; it has x, c, d"),
        ({"x": "7"}, "params.x = 7 lies outside its range"),
        ({"c": "b", "d": "3"}, "d takes part only where"),
    ],
)
def test_wrong_values_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        completed({"x": 0.1, "c": "b"}, **given)


@pytest.mark.parametrize(("given", "words"), [(["lr"], "lr: write NAME=VALUE"), (["a=1", "a=2"], "names 'a' twice")])
def test_parameters_are_given_once_by_name(given: list[str], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_params(given)
