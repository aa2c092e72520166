"""The how-to pages run: each is followed from top to bottom in an empty folder, as somebody who reads it does.

A file follows ``<!-- file: NAME -->``. The lines of a console block are typed, unless ``<!-- not run: REASON -->``
stands above it; after ``<!-- interrupted -->`` Ctrl-C is pressed. A block of output is compared with what was printed.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import make_spec
from tests.docs.samples import Sample, is_printed
from tests.flows.conftest import LIMIT, ROOT

HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^(?:<!-- ([^>]*) -->\n)?```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WORDS = 600


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """(comment above, language, text) of each block of a page."""
    yield from BLOCK.findall(page.read_text())


def typed(text: str) -> list[str]:
    """The commands of a console block, without their comments."""
    lines = text.splitlines()
    assert all(line.startswith("$ ") for line in lines), text
    return [re.split(r"\s{3,}#", line[2:])[0].strip() for line in lines]


def is_run(page: Path) -> bool:
    return any(language == "console" and not comment.startswith("not run") for comment, language, _ in blocks(page))


def follow(page: Path, folder: Path, environment: dict[str, str]) -> None:
    printed: dict[str, str] = {}
    for comment, language, text in blocks(page):
        word, _, rest = comment.partition(": ")
        if word == "file":
            (folder / rest).write_text(text)
        elif language == "console" and word != "not run":
            for command in typed(text):
                done = subprocess.run(
                    shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
                printed[command] = done.stdout
        elif word == "printed by":
            sample = Sample(page.name, rest, tuple(text.splitlines()))
            assert is_printed(sample, printed[rest], {str(folder): "/home/me"}, exactly=True), printed[rest]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in HOW_TO if is_run(page)], ids=lambda page: page.stem)
def test_a_how_to_runs_as_written(page: Path, tmp_path: Path, prefect_api: dict[str, str]) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HPO_", "MLFLOW_", "PREFECT_"))
    } | {"HOME": str(tmp_path), "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}", "COLUMNS": "200"}
    follow(page, tmp_path, environment | prefect_api)


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_a_how_to_is_short_and_says_what_can_go_wrong(page: Path) -> None:
    text = page.read_text()
    assert len(BLOCK.sub("", text).split()) <= WORDS
    assert page.stem == "install" or re.search(r"^## What can go wrong$", text, re.MULTILINE)


@pytest.mark.parametrize("page", [*HOW_TO, *TUTORIALS], ids=lambda page: page.stem)
def test_code_of_a_page_is_valid(page: Path) -> None:
    """Python parses, and a part of a study file is one that a study takes."""
    for comment, language, text in blocks(page):
        if language == "python":
            ast.parse(text)
        if language == "yaml" and not comment:
            part = yaml.safe_load(text)
            if "deployments" not in part:
                make_spec(**part)
