"""A feature is a folder and its lines of registration: with them deleted from a copy, everything else works."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpo_core import MemoryJournal, Study
from hpo_core.model import features
from hpo_core.model.errors import SpecError
from hpo_core.model.features import feature
from tests.conftest import make_spec
from tests.shape.imports import graph, modules, tree

ROOT = Path(__file__).parents[2]


class Feature(NamedTuple):
    """A feature and what is deleted to be without it."""

    files: tuple[str, ...]
    """Folders and files."""
    lines: tuple[tuple[str, str], ...] = ()
    """File and word: each line of the file that holds the word."""
    command: str = ""
    """Its command of ``hpo``."""


ON_REQUEST = "hpo_core/model/features.py"
"""Features that the core asks for by name."""

RETRAINING = "hpo_core/retraining", "flows/hpo_flows/retrain.py", "flows/hpo_flows/retraining_run.py"

FEATURES = {
    "simulation": Feature(("hpo_core/simulation",), (("hpo_core/cli/app.py", "simulate_study"),), command="simulate"),
    "sharing": Feature(
        ("hpo_core/pool",),
        (
            ("hpo_core/cli/app.py", "share_study"),
            ("hpo_core/terminal/output.py", '"hpo_core.pool.words"'),
            (ON_REQUEST, '"sharing"'),
        ),
        command="share",
    ),
    "hopping": Feature(
        ("hpo_core/hopper", "hpo_core/execution/hopping"),
        (
            ("hpo_core/terminal/output.py", '"hpo_core.execution.hopping.hopped_job"'),
            (ON_REQUEST, '"hopping"'),
        ),
        command="none of its own",
    ),
    "MLflow and retraining, which is built on it": Feature(
        ("hpo_core/tracking", *RETRAINING),
        (
            (ON_REQUEST, '"MLflow"'),
            ("hpo_core/cli/app.py", '"project": project'),
            ("hpo_core/cli/app.py", "import project"),
            ("flows/hpo_flows/study_run/wiring.py", " Trackers"),
        ),
        command="project",
    ),
    "gangs": Feature(("hpo_core/gangs",), ((ON_REQUEST, '"gangs"'),)),
    "Optuna": Feature(("hpo_core/optuna",), ((ON_REQUEST, '"Optuna"'),)),
    "packing": Feature(
        ("hpo_core/packing",),
        (
            (ON_REQUEST, '"packing"'),
            ("hpo_core/cli/app.py", '"history": history'),
            ("hpo_core/cli/app.py", "import history"),
        ),
        command="history",
    ),
    "report": Feature(
        ("hpo_core/report", "flows/hpo_flows/compare.py"),
        (
            (ON_REQUEST, '"report"'),
            ("hpo_core/cli/app.py", '"report": report'),
            ("hpo_core/cli/app.py", '"compare": compare'),
            ("hpo_core/cli/app.py", "report_commands"),
        ),
        command="report",
    ),
    "retraining": Feature(RETRAINING),
    "integrations": Feature(("hpo_core/integrations",)),
}
"""Features by name; each deployment of a flow is in ``deployments/prefect.yaml``, too."""
FEATURES["all of them"] = Feature(
    tuple(dict.fromkeys(file for one in FEATURES.values() for file in one.files)),
    tuple(line for one in FEATURES.values() for line in one.lines),
    command="report",
)

STUDY = """
study: without
metric: {name: loss}
space: {lr: {type: float, low: 0.001, high: 1, log: true}}
search: {method: asha, configs: 9, max_resource: 9}
"""
PLAY = """
import importlib, pkgutil, sys
from pathlib import Path
import hpo_core, hpo_flows
from hpo_core import MemoryJournal, Study
from hpo_core.model.features import FEATURES, feature
from hpo_core.replay.audit import audit
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
if "report" in FEATURES:
    feature("report", "study_page").write_report(journal.entries("without"), Path("report.html"))
from hpo_flows.command import app
sys.argv = ["hpo", "--help"]
app()
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "all of them" else pytest.mark.slow) for name in FEATURES]
)
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


@pytest.mark.parametrize("name", FEATURES)
def test_only_lines_of_registration_import_it(name: str) -> None:
    files = [ROOT / one for one in FEATURES[name].files]
    own = {module for module, path in modules().items() if any(path.is_relative_to(one) for one in files)}
    importers = {module for module, others in graph().items() if module not in own and others & own}
    registered = {path for path, _ in FEATURES[name].lines}
    assert {modules()[module].relative_to(ROOT).as_posix() for module in importers} <= registered


def test_what_is_asked_for_by_name_is_there() -> None:
    for path in modules().values():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and re.fullmatch(r"feature\('\w+', '\w+'\)", ast.unparse(node.value)):
                found = feature(*map(ast.literal_eval, node.value.args))
                assert hasattr(found, node.attr), f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        ("gangs", {"training": {"gang": "auto"}}),
        ("Optuna", {"sampler": {"name": "TPESampler"}}),
    ],
)
def test_a_study_that_asks_for_what_is_not_there_is_refused(
    name: str, asks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(features.FEATURES, name)
    with pytest.raises(SpecError, match=f"needs {name}, which this installation"):
        Study.create(make_spec(**asks), MemoryJournal())
