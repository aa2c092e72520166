"""Looking creates nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpo_core.cli import app
from hpo_core.errors import StudyNotFoundError


@pytest.mark.parametrize("arguments", [["list"], ["status", "x"], ["show", "x"], ["audit", "x"], ["export", "x"]])
def test_reading_commands_leave_a_wrong_folder_as_it_is(tmp_path: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, [*arguments, "--home", str(tmp_path / "nowhere")])
    if arguments == ["list"]:
        assert "No study yet" in result.output
    else:
        assert isinstance(result.exception, StudyNotFoundError)
    assert list(tmp_path.iterdir()) == []
