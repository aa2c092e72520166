"""The terminal at 80 and at 40 columns, version, completion, and names that were mistyped."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hpo_core.cli.app import GROUPS
from hpo_core.terminal.output import print_rows
from hpo_flows.command import app
from tests.cli.test_console import hpo, played
from tests.methods import spec_of

ROW = {
    "study": "digits",
    "method": "hyperband",
    "status": "interrupted",
    "trials": 123456,
    "best": -0.000123456789,
    "why": "ValueError: a long message that needs several lines in a terminal of eighty columns or fewer",
    "created": "2026-11-21 18:02",
}


def printed(width: int, rows: list[dict[str, object]]) -> str:
    console = Console(width=width, file=io.StringIO(), record=True, force_terminal=True)
    print_rows(console, rows)
    return console.export_text()


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40])
def test_no_number_date_or_name_is_cut(width: int) -> None:
    long = "a-study-with-a-long-name-that-says-what-data-and-model-it-is-about-and-when-20261121"
    text = printed(width, [ROW, ROW | {"study": long}])
    assert ROW["study"] in printed(width, [ROW])
    for whole in ("digits", long, "hyperband", "interrupted", "123456", "-0.00012346", "2026-11-21 18:02"):
        assert whole in text, whole
    assert "…" not in text
    assert "".join(ROW["why"].split()) in "".join(printed(width, [{"study": "x", "why": ROW["why"]}]).split())  # type: ignore[attr-defined]
    if width >= 100:
        assert printed(width, [ROW]).splitlines()[0].split() == list(ROW), "a table where there is room for one"


def test_zero_columns_are_as_if_nothing_was_said(tmp_path: Path) -> None:
    """Some shells without a terminal say so; once nothing at all was printed."""
    played(tmp_path, spec_of("asha"))

    def said(columns: dict[str, str]) -> str:
        command = [sys.executable, "-m", "hpo_flows", "show", "world", "--home", str(tmp_path)]
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        return subprocess.run(command, env=environment | columns, capture_output=True, text=True, check=True).stdout

    assert said({"COLUMNS": "0"}) == said({}) != ""


def test_status_is_short_and_show_is_long(tmp_path: Path) -> None:
    study = played(tmp_path, spec_of("asha"), 14)
    status, shown = hpo(tmp_path, "status", "world"), hpo(tmp_path, "show", "world")
    assert len(status.splitlines()) <= 6 < len(shown.splitlines())
    assert status.splitlines()[0].startswith("world: ") and "hpo show world" in status
    best = study.best
    assert best is not None
    for name, value in study.state.trials[best.trial].params.items():
        assert f"{name} = {value}" in shown, "parameters are written in full: people copy them"


def test_help_has_every_summary_in_full() -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0 and "..." not in result.output.partition("Before a study:")[2]
    groups = [line.strip(":") for line in result.output.splitlines() if line.endswith(":") and line[0] != " "]
    assert groups == ["Options", *GROUPS], "no command is in none"


def test_a_shell_completes_names_of_studies(tmp_path: Path) -> None:
    played(tmp_path, spec_of("random"))
    asked = {
        "_HPO_COMPLETE": "complete_bash",
        "COMP_WORDS": "hpo show wo",
        "COMP_CWORD": "2",
        "HPO_HOME": str(tmp_path),
    }
    script = "from hpo_flows.command import app; app(prog_name='hpo')"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**asked, "PATH": "/usr/bin"}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["world"]


@pytest.mark.parametrize(
    ("typed", "meant"), [("wrold", "'world'"), ("World", "'world'"), ("wor", "'world'"), ("world.yaml", "'world'")]
)
def test_a_mistyped_study_is_told_what_was_meant(typed: str, meant: str, tmp_path: Path) -> None:
    played(tmp_path, spec_of("random"))
    result = CliRunner().invoke(app, ["show", typed, "--home", str(tmp_path)])
    assert f"did you mean {meant}?" in str(result.exception)
    result = CliRunner().invoke(app, ["show", "elephants", "--home", str(tmp_path)])
    assert "did you mean" not in str(result.exception) and "it holds: world" in str(result.exception)
    result = CliRunner().invoke(app, ["show", "study.yaml", "--home", str(tmp_path)])
    assert "Give the name that the file has under `study`." in str(result.exception)


def test_a_wrong_number_of_a_trial_is_repeated(tmp_path: Path) -> None:
    played(tmp_path, spec_of("random"))
    shown = CliRunner().invoke(app, ["show", "world", "--trial", "abc"])
    assert shown.exit_code == 2 and "(got 'abc')" in shown.output
    at_end = CliRunner().invoke(app, ["show", "world", "--trial", "999", "--home", str(tmp_path)])
    assert str(at_end.exception).endswith(".") and "entry" not in str(at_end.exception)
    earlier = CliRunner().invoke(app, ["show", "world", "--trial", "999", "--at", "3", "--home", str(tmp_path)])
    assert str(earlier.exception).endswith(" at entry 3.")
