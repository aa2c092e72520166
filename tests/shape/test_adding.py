"""The READMEs of search and model, done to a copy of the package: a new method and parameter type, in use."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("search", "model")
_BLOCK = re.compile(r'^```(?:python|yaml) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)

PLAY = """
import sys
from hpo_core import MemoryJournal, Study
from hpo_core.replay.audit import audit
from hpo_core.spec import load_spec

spec = load_spec(sys.argv[1])
journal = MemoryJournal()
study = Study.create(spec, journal)
while (job := study.ask()) is not None:
    loss = sum(float(value) for value in job.params.values()) / job.target
    study.tell(job, {"val_loss": loss})
study.method.check()
assert study.status == "finished", study.status
assert spec.from_plain(spec.plain()) == spec
again = Study.open(spec.study, journal)
assert again.method.rungs() == study.method.rungs() and again.best == study.best
assert not audit(journal.entries(spec.study)).findings
print([rung.results for rung in study.method.rungs()], sorted({str(t.params) for t in study.state.trials})[:3])
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adding")
    shutil.copytree(ROOT / "hpo_core", folder / "hpo_core", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in _BLOCK.findall("".join((ROOT / "hpo_core" / room / "README.md").read_text() for room in ROOMS)):
        path = folder / name
        if path.name not in ("registry.py", "__init__.py"):
            assert not path.exists(), f"{name} is no new file"
            path.write_text(text)
            continue
        line, _, (opening, entry) = text.partition("\n\n")[0], None, text.partition("\n\n")[2].splitlines()
        registry = path.read_text()
        assert registry.count(opening) == 1
        first = registry.index("from hpo_core")
        registry = registry[:first] + line + "\n" + registry[first:]
        path.write_text(registry.replace(opening, f"{opening}\n{entry}"))
    return folder


def run(folder: Path, *words: str) -> str:
    found = subprocess.run(
        [sys.executable, "-P", *words],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin", "HPO_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr + found.stdout
    return found.stdout


def test_a_new_search_method_plays_replays_and_is_audited(copied: Path) -> None:
    assert run(copied, "-c", PLAY, "duels.yaml").startswith("[16, 8]")


def test_a_new_parameter_type_plays_replays_and_is_audited(copied: Path) -> None:
    assert "'width': " in run(copied, "-c", PLAY, "power.yaml")


def test_the_command_simulates_what_is_new(copied: Path) -> None:
    command = "from hpo_core.cli.app import app; app()"
    found = run(copied, "-c", command, "simulate", "duels.yaml", "--workers", "4", "--repeat", "2")
    assert "trials" in found


TRAIN = """
def train(trial):
    for step in trial.steps():
        trial.report(val_loss=sum(map(float, trial.params.values())) / (step + 1))
"""


def test_what_is_new_trains(copied: Path) -> None:
    """A file without an objective could be simulated, and not be run as the page says."""
    (copied / "train.py").write_text(TRAIN)
    command = "from hpo_core.cli.app import app; app()"
    assert "val_loss" in run(copied, "-c", command, "try", "power.yaml")


def test_an_error_in_a_new_part_names_place_value_and_rule(copied: Path) -> None:
    bad = (copied / "duels.yaml").read_text().replace("pairs: 8", "pairs: 0, pairz: 1")
    (copied / "bad.yaml").write_text(bad)
    code = (
        "import sys; from hpo_core.spec import load_spec\ntry: load_spec(sys.argv[1])\nexcept Exception as e: print(e)"
    )
    said = run(copied, "-c", code, "bad.yaml")
    assert "bad.yaml:5: search.pairs: Input should be greater than or equal to 1" in said
    assert "search.pairz: unknown key; did you mean 'pairs'?" in said
