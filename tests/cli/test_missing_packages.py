"""A command that needs a package of an extra says which extra, also where another error stands before the cause."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hpo_core import Study
from hpo_core.cli.app import run
from hpo_core.home import Home
from hpo_flows.command import app
from hpo_flows.deployed import register
from tests.conftest import make_spec


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> tuple[str, int]:
    """What a command that fails says, and its exit code."""
    monkeypatch.setattr(sys, "argv", ["hpo", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run(app)
    return capsys.readouterr().err, int(ended.value.code or 0)


def absent(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Importing it fails as if it were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def test_project_without_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    Study.create(make_spec(tracking={}), Home(str(home)).open_journal())
    absent(monkeypatch, "mlflow")
    words, code = told(capsys, monkeypatch, "project", "world", "--home", home)
    assert "pip install 'hpo-core[mlflow]'" in words and code == 1
    assert "Traceback" not in words


@pytest.mark.parametrize("command", ["deploy", "worker"])
def test_deployments_without_prefect(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has no Prefect cannot start the server that they are asked for."""
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_HOME", "HPO_HOME", "HPO_IMPORT_FOLDERS", register.WORKER):  # the worker sets the last three
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(register, "find_spec", lambda name: None, raising=False)
    words, code = told(capsys, monkeypatch, command)
    assert "pip install 'hpo-core[flows]'" in words and code == 1
