"""A built wheel holds what the packages need where no checkout is: ``pip install .`` and containers install one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.flows.conftest import ROOT

pytest.importorskip("setuptools", minversion="77")

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as ``pip`` lays them down."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    names = subprocess.run(
        ["git", "ls-files", "hpo_core", "flows", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=source, capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def test_every_file_of_the_packages_is_in_the_wheel(installed: Path) -> None:
    for base, package in ((ROOT, "hpo_core"), (ROOT / "flows", "hpo_flows")):
        tracked = subprocess.run(
            ["git", "ls-files", package], cwd=base, capture_output=True, text=True, check=True
        ).stdout.split()
        assert tracked
        assert not [name for name in tracked if not (installed / name).is_file()]
    assert (installed / "hpo_flows" / "py.typed").is_file()


def test_deployments_are_found_without_a_checkout(installed: Path) -> None:
    """``hpo deploy`` in a container reads both: the deployments, and the work pool that takes no code from a run."""
    code = "from hpo_flows.deployed import register as r; print(r.__file__, r.DEPLOYMENTS, r.POOL_TEMPLATE, sep='\\n')"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=installed, env=environment, capture_output=True, text=True, check=True
    )
    module, *files = done.stdout.splitlines()
    assert Path(module).is_relative_to(installed)
    assert [name for name in files if not Path(name).is_file()] == []
