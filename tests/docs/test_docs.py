"""What the documents say runs, and their links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest

import hpo_core
from hpo_core import load_spec

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / name for name in subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()]  # fmt: skip

GUIDE = [ROOT / "README.md", *(page for page in PAGES if page.is_relative_to(ROOT / "docs"))]
"""What a user reads: the README and the pages of the site."""


def blocks(language: str) -> list[tuple[str, str]]:
    """(file name or '', text) of the code blocks of all pages."""
    pattern = rf"(?:<!-- file: (\S+) -->\n)?```{language}\n(.*?)```"
    found = [match for page in GUIDE for match in re.finditer(pattern, page.read_text(), re.DOTALL)]
    return [(match[1] or "", match[2]) for match in found]


def write_files(folder: Path, *names: str) -> None:
    """Write the files that the pages show into a folder; all of them if none is named."""
    for language in ("python", "yaml"):
        for name, text in blocks(language):
            if name and (not names or name in names):
                (folder / name).write_text(text)


def test_file_shown_twice_is_the_same() -> None:
    texts: dict[str, set[str]] = {}
    for name, text in [*blocks("python"), *blocks("yaml")]:
        texts.setdefault(name, set()).add(text)
    assert {"train.py", "study.yaml", "objective.py", "optuna.yaml"} <= texts.keys()
    assert not [name for name, shown in texts.items() if name and len(shown) > 1]


def test_main_loop_by_hand_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (loop,) = {text for name, text in blocks("python") if '"by-hand"' in text and not name}
    assert len(loop.strip().splitlines()) <= 12
    exec(loop, {})
    assert "Incumbent(trial=" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["on-s3.yaml", "on-sftp.yaml"])
def test_study_files_for_servers_of_files_are_valid(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, "train.py", name)
    spec = load_spec(tmp_path / name)
    assert spec.study == name.removesuffix(".yaml") and spec.checkpoint_base.endswith(f"/hpo/{spec.study}")


def test_commands_named_exist() -> None:
    from hpo_flows.command import app

    known = {command.name for command in app.registered_commands}
    for page in GUIDE:
        named = set(re.findall(r"`hpo (\w[\w-]*)", page.read_text()))
        named |= set(re.findall(r"^\$ hpo (\w[\w-]*)", page.read_text(), re.MULTILINE))
        assert named <= known, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page}: {target}"


NAMES_PATHS = [*GUIDE, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]


@pytest.mark.parametrize("page", NAMES_PATHS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_and_modules_named_exist(page: Path) -> None:
    rooms = "hpo_core|flows|tests|examples|deployments|benchmarks"
    text = page.read_text()
    for path in re.findall(rf"[`(](?:\.\./)*((?:{rooms})/[\w./-]+)", text):
        assert (ROOT / path).exists(), f"{page}: {path}"
    for name in re.findall(r"`((?:hpo_core|hpo_flows)\.[\w.]+)[`(]", text):
        module, _, last = name.rpartition(".")
        if importlib.util.find_spec(module) and not hasattr(importlib.import_module(module), last):
            assert importlib.util.find_spec(name), f"{page}: {name}"


def test_every_room_has_a_readme() -> None:
    for folder in (ROOT / "hpo_core", ROOT / "flows" / "hpo_flows"):
        rooms = [path.parent for path in folder.glob("*/__init__.py")] if folder.name == "hpo_core" else []
        for package in [folder, *rooms]:
            assert (package / "README.md").is_file(), package


MODULES = [m.name for m in pkgutil.walk_packages(hpo_core.__path__, "hpo_core.")]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    if name in ("hpo_core.integrations.lightning", "hpo_core.integrations.huggingface"):
        pytest.importorskip(name, reason="its optional package is not installed", exc_type=ImportError)
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
