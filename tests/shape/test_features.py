"""A feature is a folder and its lines of registration: with them deleted from a copy, everything else works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Feature(NamedTuple):
    """A feature and what is deleted to be without it."""

    files: tuple[str, ...]
    """Folders and files."""
    lines: tuple[tuple[str, str], ...] = ()
    """File and word: each line of the file that holds the word."""
    command: str = ""
    """Its command of ``hpo``."""


FEATURES = {
    "simulation": Feature(("hpo_core/simulation",), (("hpo_core/cli/app.py", "simulate_study"),), command="simulate"),
    "sharing": Feature(
        ("hpo_core/pool",),
        (
            ("hpo_core/cli/app.py", "share_study"),
            ("hpo_core/terminal/output.py", '"hpo_core.pool.words"'),
            ("flows/hpo_flows/study_run/session.py", "sharing"),
        ),
        command="share",
    ),
    "hopping": Feature(
        ("hpo_core/hopper", "hpo_core/execution/hopping"),
        (
            ("hpo_core/terminal/output.py", '"hpo_core.execution.hopping.hopped_job"'),
            ("flows/hpo_flows/study_run/session.py", "hopping"),
        ),
        command="none of its own",
    ),
    "retraining": Feature(("hpo_core/retraining", "flows/hpo_flows/retrain.py", "flows/hpo_flows/retraining_run.py")),
    "integrations": Feature(("hpo_core/integrations",)),
}
"""Features by name; each deployment of a flow is in ``deployments/prefect.yaml``, too."""

STUDY = """
study: without
metric: {name: loss}
space: {lr: {type: float, low: 0.001, high: 1, log: true}}
search: {method: asha, configs: 9, max_resource: 9}
"""
PLAY = """
import importlib, pkgutil, sys
import hpo_core, hpo_flows
from hpo_core import MemoryJournal, Study
from hpo_core.replay.audit import audit
from hpo_core.report import write_report
from hpo_core.spec import load_spec

for package in (hpo_core, hpo_flows):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as error:  # of a library that is not installed, as transformers
                missing = error.__cause__ or error
                if not isinstance(missing, ModuleNotFoundError) or missing.name.startswith("hpo_"):
                    raise
journal = MemoryJournal()
study = Study.create(load_spec("study.yaml"), journal)
while (job := study.ask()) is not None:
    study.tell(job, {"loss": job.params["lr"] / job.target})
assert study.status == "finished" and not audit(journal.entries("without")).findings
write_report(journal.entries("without"), __import__("pathlib").Path("report.html"))
from hpo_flows.command import app
sys.argv = ["hpo", "--help"]
app()
"""


@pytest.mark.parametrize("name", FEATURES)
def test_the_rest_works_without(name: str, tmp_path: Path) -> None:
    feature = FEATURES[name]
    gone = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "hpo_core", tmp_path / "hpo_core", ignore=gone)
    shutil.copytree(ROOT / "flows" / "hpo_flows", tmp_path / "flows" / "hpo_flows", ignore=gone)
    for one in feature.files:
        path = tmp_path / one
        assert path.exists()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for file, word in feature.lines:
        path = tmp_path / file
        kept = [line for line in path.read_text().splitlines(keepends=True) if word not in line]
        path.write_text("".join(kept))
    (tmp_path / "study.yaml").write_text(STUDY)
    found = subprocess.run(
        [sys.executable, "-P", "-c", PLAY],
        cwd=tmp_path,
        env={
            "PYTHONPATH": f"{tmp_path}:{tmp_path / 'flows'}",
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "HPO_HOME": str(tmp_path / "home"),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr + found.stdout
    listed = {line.split()[0] for line in found.stdout.splitlines() if line.startswith("  ") and line.split()}
    assert "tune" in listed
    assert feature.command not in listed
