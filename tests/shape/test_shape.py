"""The nevers: which room may import which. Read from the source, so a lazy import counts as well."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "hpo_core").rglob("*.py")}
FLOWS = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "flows").rglob("*.py")}


def imports(path: Path) -> set[str]:
    """Dotted names of all modules a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def touches(path: Path, *rooms: str) -> set[str]:
    return {name for name in imports(path) if any(name == room or name.startswith(room + ".") for room in rooms)}


@pytest.mark.parametrize("name", sorted(CORE))
def test_core_never_imports_prefect_dask_or_flows(name: str) -> None:
    assert not touches(CORE[name], "prefect", "dask", "distributed", "hpo_flows")


@pytest.mark.parametrize(
    ("room", "never"),
    [
        ("hpo_core/state/study_state.py", ["search", "samplers", "journal", "study", "tracking", "training"]),
        ("hpo_core/model/events.py", ["state", "search", "study", "journal"]),
        ("hpo_core/model/space.py", ["spec", "state", "study"]),
        ("hpo_core/search/", ["journal", "tracking", "training", "study", "samplers"]),
        ("hpo_core/samplers/", ["journal", "tracking", "training", "study"]),
        ("hpo_core/study/study.py", ["tracking", "training", "report", "simulation", "journal.sql"]),
        ("hpo_core/training/", ["study", "state", "journal", "search", "tracking", "report"]),
        ("hpo_core/simulation/", ["training", "tracking", "report", "journal.sql"]),
        ("hpo_core/report/", ["training", "tracking", "journal.sql"]),
    ],
)
def test_walls(room: str, never: list[str]) -> None:
    files = [path for name, path in CORE.items() if name == room or (room.endswith("/") and name.startswith(room))]
    assert files
    for path in files:
        assert not touches(path, *(f"hpo_core.{other}" for other in never)), path


def test_tasks_never_touch_the_journal() -> None:
    assert not touches(FLOWS["flows/hpo_flows/tasks.py"], "hpo_core.journal", "hpo_core.study")


def test_no_clock_and_no_global_random_generator_in_the_core() -> None:
    files = [*(ROOT / "hpo_core" / "model").rglob("*.py"), *(ROOT / "hpo_core" / "state").rglob("*.py")]
    for path in [*files, *(ROOT / "hpo_core" / "spec").glob("*.py")]:
        assert not touches(path, "time", "random", "datetime", "threading"), path
    for path in (ROOT / "hpo_core" / "search").rglob("*.py"):
        assert not touches(path, "time", "random", "threading", "numpy.random"), path
        assert "np.random" not in path.read_text(), path


def test_no_rooms_without_a_name() -> None:
    assert not [name for name in CORE | FLOWS if Path(name).name in {"utils.py", "helpers.py"}]
