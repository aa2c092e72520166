"""The documentation site builds strictly, without a network, and documents every setting and command."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hpo_core

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_site_builds_strictly(site: Path) -> None:
    for name in (
        "index.html",
        "reference/study-file.html",
        "reference/api.html",
        "security.html",
        "decisions/index.html",
    ):
        assert (site / name).is_file()


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"(https?:[^\"]*)", page.read_text())
        loaded += re.findall(r"<link[^>]* href=\"(https?:[^\"]*)", page.read_text())
        assert not loaded, page


def test_reference_holds_the_public_names(site: Path) -> None:
    text = (site / "reference" / "api.html").read_text()
    for name in hpo_core.__all__:
        assert f'id="hpo_core.{name}"' in text, name


def test_pictures_of_other_folders_are_on_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        for picture in re.findall(r"<img[^>]* src=\"([^\":]+)\"", page.read_text()):
            assert (page.parent / picture).is_file(), f"{page.relative_to(site)}: {picture}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert len(pages) > 30
    for page in pages:
        assert re.search(rf"(: |- ){re.escape(page)}$", navigation, re.MULTILINE), page


def test_every_extra_is_explained() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys() - {"dev"}
    table = (DOCS / "how-to" / "install.md").read_text().split("| extra | for |")[1].split("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == extras
