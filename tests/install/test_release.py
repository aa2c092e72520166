"""What would be published: built as the workflow builds it, checked, and installed where no checkout is."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.test_docs import ROOT, write_files
from tests.flows.conftest import LIMIT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def steps() -> dict[str, dict[str, Any]]:
    """Steps of the publishing workflow that run a command, by name."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text())
    return {step["name"]: step for step in workflow["jobs"]["publish"]["steps"] if "run" in step}


def test_workflow_uploads_what_was_checked_with_one_secret() -> None:
    assert list(steps()) == ["the tag is the version", "tools", "build", "check", "upload"]
    assert steps()["check"]["run"].split()[-1] == steps()["upload"]["run"].split()[-1] == "dist/*"
    secrets = [value for step in steps().values() for value in step.get("env", {}).values() if "secrets." in value]
    assert secrets == ["${{ secrets.PYPI_TOKEN }}"]


def test_workflow_refuses_a_tag_that_is_not_the_version() -> None:
    command = steps()["the tag is the version"]["run"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for tag, code in ((f"v{VERSION}", 0), ("v99.0.0", 1)):
        environment = {"PATH": path, "GITHUB_REF_NAME": tag}
        assert subprocess.run(["bash", "-ec", command], cwd=ROOT, env=environment).returncode == code


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commit's files alone, built by the commands of the workflow."""
    pytest.importorskip("build", reason="`build` is not installed (tests/requirements-slow.in has it)")
    pytest.importorskip("twine", reason="`twine` is not installed (tests/requirements-slow.in has it)")
    folder = tmp_path_factory.mktemp("source")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    for name, more in (("build", " --no-isolation"), ("check", "")):  # without a network
        command = steps()[name]["run"].replace("python ", f"{sys.executable} ", 1) + more
        done = subprocess.run(["bash", "-ec", command], cwd=folder, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_example_of_the_first_page_runs_from_the_wheel(source: Path, tmp_path: Path) -> None:
    """The libraries that it needs are those of this environment; ``.ci/release_check`` installs them from the index."""
    (wheel,) = source.glob("dist/*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    quietly = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([python, "-m", "pip", "install", *quietly, wheel], check=True, timeout=LIMIT)
    paths = sysconfig.get_paths(vars={"base": str(tmp_path / "venv"), "platbase": str(tmp_path / "venv")})
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (Path(paths["purelib"]) / "libraries.pth").write_text("\n".join(libraries))
    folder = tmp_path / "project"
    folder.mkdir()
    write_files(folder, "sine.py")
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}

    def ask(*words: str | Path) -> str:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    place = ask(python, "-c", "import hpo_core, hpo_flows; print(hpo_core.__file__, hpo_flows.__file__, sep='\\n')")
    assert all(Path(line).is_relative_to(tmp_path / "venv") for line in place.splitlines()), place
    assert "learning_rate" in ask(python, "sine.py")
    hpo = python.parent / "hpo"
    assert VERSION in ask(hpo, "--version")
    assert "finished" in ask(hpo, "list")
