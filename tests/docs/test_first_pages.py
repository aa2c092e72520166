"""What a newcomer meets first: the example of the README, and the pages for those who know another library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpo_core
from hpo_core import load, resume
from tests.docs.samples import is_printed, samples_in
from tests.docs.side_by_side import scripts
from tests.docs.test_docs import ROOT, write_files
from tests.flows.conftest import LIMIT

HOW_TO = ROOT / "docs" / "how-to"
FIRST_SEARCH = ROOT / "docs" / "tutorials" / "first-search.md"
FROM_OPTUNA, FROM_RAY = HOW_TO / "move-from-optuna.md", HOW_TO / "move-from-ray-tune.md"


def run(script: Path) -> str:
    """Run a script in its own folder, as somebody who follows a page does; what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HPO_", "MLFLOW_"))}
    done = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_example_of_the_first_page_runs_in_a_fresh_folder(
    tmp_path: Path, prefect_api: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in prefect_api.items():
        monkeypatch.setenv(name, value)
    write_files(tmp_path, "sine.py")
    printed = run(tmp_path / "sine.py")
    result = load("sine", tmp_path / ".hpo")
    assert result.status == "finished" and len(result.trials) == 30
    (shown,) = [one for one in samples_in(FIRST_SEARCH, ROOT) if one.command == "python sine.py"]
    assert is_printed(shown, printed, {str(tmp_path): "/home/me/sine"}), printed
    assert str(result.best.value) in printed and str(result.best.checkpoint) in printed
    assert result.best.value < 0.3 and Path(result.best.checkpoint or "").is_file()
    again = resume("sine", home=tmp_path / ".hpo")  # as the page says; it has ended
    assert again.best.value == result.best.value and len(again.jobs) == len(result.jobs)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("page", [FROM_OPTUNA, FROM_RAY], ids=lambda page: page.stem)
def test_both_sides_run_as_written(page: Path, side: str, tmp_path: Path) -> None:
    if (page, side) == (FROM_RAY, "left"):
        pytest.importorskip("ray", reason="Ray is not installed (tests/requirements-slow.in has it)")
    script = tmp_path / f"{side}.py"
    script.write_text(dict(zip(("left", "right"), scripts(page), strict=True))[side])
    printed = run(script)
    if side == "right":
        assert load("first", tmp_path / ".hpo").status == "finished", printed
    else:
        assert list(tmp_path.iterdir()) != [script], "it kept its study"


@pytest.mark.parametrize(
    "page",
    [FROM_OPTUNA, FROM_RAY, FIRST_SEARCH, ROOT / "README.md", ROOT / "docs" / "index.md"],
    ids=lambda page: page.stem,
)
def test_names_of_ours_are_public(page: Path) -> None:
    names = set(re.findall(r"\bhpo\.([A-Za-z]\w*)", page.read_text())) - {"pareto", "state"}  # tags
    assert names and names <= set(hpo_core.__all__), names - set(hpo_core.__all__)
