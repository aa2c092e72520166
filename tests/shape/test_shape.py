"""The nevers: which room may import which. Read from the source, so a lazy import counts as well."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

from tests.shape.code_figures import (
    docstrings,
    doubled_classes,
    mode_questions,
    questions,
    questions_of_attributes,
    riddles,
)
from tests.shape.imports import ROOT, cycles, graph, imported, modules, tree

MODULES = modules()
CORE = {name: path for name, path in MODULES.items() if name.split(".")[0] == "hpo_core"}
FOLDERS = sorted({path.parent for path in MODULES.values()})

LAYERS = [
    {"model"},
    {"security"},
    {"search", "samplers"},
    {"spec"},
    {"placement", "hopper", "journal", "partitioning"},
    {"state"},
    {"checkpoints"},
    {"study"},
    {"home"},
    {"replay"},
    {"training"},
    {"execution"},
    {"views"},
    {"result"},
    {"terminal"},
    {"tracking"},
    {"gangs", "integrations", "optuna", "packing", "pool", "report", "retraining", "simulation"},
    {"cli"},
    {""},
]
"""The rooms of hpo_core from the bottom up. A room imports rooms of lower layers only; ``""`` is the package itself."""

FLOW_LAYERS = [
    {"dask", "early_interrupt", "progress", "guarded_server"},
    {"python_progress"},
    {"prefect_api"},
    {"prefect_pages"},
    {"serve_home"},
    {"study_run"},
    {"deployed"},
    {"tune_arguments"},
    {"python_call"},
    {"retraining_run"},
    {"compare", "retrain"},
    {"command"},
    {"__main__", ""},
]
"""The rooms of hpo_flows from the bottom up, by the same rule."""

MOST_FILES = 25
"""Modules of one folder, ``__init__`` aside."""

MOST_QUESTIONS = 13
"""Lines that ask which mode a study is in, outside ``spec``."""

MOST_DOCUMENTED = 0.40
"""Share of functions with a docstring; lower it as rooms lose theirs."""


SAME_NAME = {"__main__", "registry", "rungs", "worker", "connection", "executor"}
"""Base names that two folders may share: each room has its registry; these words mean one thing in each place."""


def room_of(module: str) -> str:
    """The room of a module, as :data:`LAYERS` and :data:`FLOW_LAYERS` spell it."""
    return ".".join(module.split(".")[1:2])


def touches(path: Path, *rooms: str) -> set[str]:
    """Names that a file imports, for type checkers or not, of these packages or modules."""
    names = imported(path, for_types=True)
    return {name for name in names if any(name == room or name.startswith(room + ".") for room in rooms)}


def test_the_pages_for_contributors_show_the_layers_and_files_that_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "docs" / "explanation" / "how-a-job-runs.md").read_text()
    for package, layers in (("hpo_core", LAYERS), ("hpo_flows", FLOW_LAYERS)):
        drawn = page.partition(f'```text title="{package}, from the top"\n')[2].partition("```")[0].splitlines()
        assert [set(line.split(", ")) for line in drawn] == [{room or package for room in one} for one in layers[::-1]]
    named = re.findall(r"`((?:hpo_core|flows)/[^`]+\.py)`", page)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_readme_of_each_room_names_files_that_exist() -> None:
    gone = []
    for readme in (*ROOT.glob("hpo_core/**/README.md"), *ROOT.glob("flows/**/README.md")):
        text = readme.read_text()
        named = set(re.findall(r"`([\w/]+\.py)`", text))
        for table in text.split("| file | holds |\n")[1:]:
            rows = table.partition("\n\n")[0]
            named |= {
                name if (readme.parent / name).is_dir() else f"{name}.py"
                for name in re.findall(r"(?m)^\| `(\w+)`", rows)
            }
        folders = readme.parent, ROOT, ROOT / "hpo_core", ROOT / "flows"
        missing = sorted(name for name in named if not any((folder / name).exists() for folder in folders))
        gone += [f"{readme.relative_to(ROOT)}: {name}" for name in missing]
    assert gone == []


def test_every_room_has_a_layer() -> None:
    for layers, names in ((LAYERS, CORE), (FLOW_LAYERS, MODULES.keys() - CORE.keys())):
        known = {room for layer in layers for room in layer}
        assert {room_of(name) for name in names} == known, "a room that is new or gone: say where it stands"


@pytest.mark.parametrize(("package", "layers"), [("hpo_core", LAYERS), ("hpo_flows", FLOW_LAYERS)])
def test_rooms_import_lower_layers_only(package: str, layers: list[set[str]]) -> None:
    layer = {room: number for number, rooms in enumerate(layers) for room in rooms}
    found = set()
    for name, others in graph().items():
        if name.partition(".")[0] != package:
            continue
        for other in others:
            if other.partition(".")[0] == package:
                if room_of(other) != room_of(name) and layer[room_of(other)] >= layer[room_of(name)]:
                    found.add((name, room_of(other)))
            elif package == "hpo_core":
                found.add((name, "hpo_flows"))
    assert found == set()


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycles(graph()) == []


def test_core_never_imports_prefect_dask_or_flows() -> None:
    for name, path in CORE.items():
        found = touches(path, "prefect", "dask", "distributed", "hpo_flows")
        if name == "hpo_core":  # `hpo_core.tune` is imported when it is first asked for; this is for type checkers
            found -= {"hpo_flows.python_call", "hpo_flows.python_call.tune", "hpo_flows.python_call.resume"}
        assert not found, name


@pytest.mark.parametrize(
    ("room", "never"),
    [
        ("study", ["journal.sql"]),
        ("training", ["study", "state", "journal", "search"]),
        ("simulation", ["training", "journal.sql"]),
        ("report", ["training", "tracking", "journal.sql"]),
    ],
)
def test_walls_besides_the_layers(room: str, never: list[str]) -> None:
    files = [path for name, path in CORE.items() if room_of(name) == room]
    assert files
    for path in files:
        assert not touches(path, *(f"hpo_core.{other}" for other in never)), path


def test_tasks_never_touch_the_journal() -> None:
    assert not touches(MODULES["hpo_flows.prefect_pages.study_tasks"], "hpo_core.journal")


def test_no_clock_and_no_global_random_generator_in_the_core() -> None:
    for name, path in CORE.items():
        if room_of(name) in ("model", "state", "spec"):
            lock = {"threading"} if name == "hpo_core.model.syntax_tree" else set()  # CPython fails without one
            assert touches(path, "time", "random", "datetime", "threading") == lock, path
        if room_of(name) == "search":
            assert not touches(path, "time", "random", "threading", "numpy.random"), path
            assert "np.random" not in path.read_text(), path


def test_nobody_outside_search_asks_which_method_it_is() -> None:
    """The outline of a search answers what others want to know, so a new method is known everywhere."""
    settings = {"AshaSearch", "ShaSearch", "HyperbandSearch", "PashaSearch", "PbtSearch", "RandomSearch", "GridSearch"}
    found = []
    for name, path in MODULES.items():
        if name in CORE and room_of(name) == "search":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                asked = any(isinstance(side, ast.Attribute) and side.attr == "method" for side in sides)
            else:
                asked = (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func) == "isinstance"
                    and bool({n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & {*settings, "RecordedSearch"})
                )
            if asked:
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_no_rooms_without_a_name() -> None:
    assert not [path for path in MODULES.values() if path.name in {"utils.py", "helpers.py"}]


def test_folders_stay_small() -> None:
    for folder in FOLDERS:
        assert len([path for path in folder.glob("*.py") if path.stem != "__init__"]) <= MOST_FILES, folder


def test_each_top_room_says_what_a_newcomer_must_know() -> None:
    rooms = {ROOT / "hpo_core" / room_of(name) for name in CORE if room_of(name) not in ("", "home", "result")}
    missing = [room.name for room in (*rooms, ROOT / "flows" / "hpo_flows") if not (room / "README.md").is_file()]
    assert missing == []


def test_no_base_name_twice() -> None:
    found = defaultdict(list)
    for path in MODULES.values():
        if path.stem != "__init__":
            found[path.stem].append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in found.items() if len(paths) > 1 and name not in SAME_NAME} == {}


def test_the_modes_of_a_study_are_asked_for_in_one_place() -> None:
    """A question like ``spec.packing is not None`` belongs to where a run is assembled; others ask demand and room."""
    assert len(mode_questions()) <= MOST_QUESTIONS, mode_questions()


def test_no_public_class_name_twice() -> None:
    assert doubled_classes() == {}


def test_docstrings_begin_with_what_they_describe() -> None:
    assert riddles() == []


def test_docstrings_name_what_they_describe_and_ask_no_question() -> None:
    """``True if it is tracked``, ``The states of a rank``; not ``Whether``, ``What`` or ``How``."""
    assert questions() == []


def test_attributes_are_named_and_asked_no_question() -> None:
    """``True if it is a GPU``, ``Number of partitions``; not ``Whether it is`` or ``How many``."""
    assert questions_of_attributes() == []


def test_docstrings_stand_on_what_others_call() -> None:
    """A name says it, or a docstring does: on what another room or a user calls."""
    functions, documented = docstrings()
    assert documented / functions <= MOST_DOCUMENTED


SCRIPTS = [path for folder in ("benchmarks", "docs", "deployments") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_scripts_import_names_that_exist() -> None:
    """No type checker reads them: a benchmark once imported a function that had gone, and nobody saw it."""
    missing = [
        f"{path.relative_to(ROOT)}: {name} of {module}"
        for path in SCRIPTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and not node.level
        for module in [node.module or ""]
        if module.partition(".")[0] in ("hpo_core", "hpo_flows")
        for name in [alias.name for alias in node.names]
        if not hasattr(import_module(module), name) and f"{module}.{name}" not in MODULES
    ]
    assert not missing


WAITS = {"sleep", "wait", "wait_for", "select", "_wait"}


def test_a_loop_without_end_waits_in_each_turn() -> None:
    """One that computes until nothing changes spun for ever, within a transaction; give it a bound, or a condition."""

    def waits(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in WAITS or (name in {"get", "read"} and len(node.args) <= (name == "read"))

    def is_endless(node: ast.AST) -> bool:
        return isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)

    spinning = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        for node in ast.walk(tree(path))
        if is_endless(node) and not any(map(waits, ast.walk(node)))
    ]
    assert spinning == []
