"""The core without the packages of its extras: it imports, searches, simulates and reports, and is imported fast."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("core_alone.py")
EXTRAS = ["cmaes", "dask", "distributed", "mlflow", "prefect", "pynvml", "scipy", "sklearn", "torch"]
"""Importable names of what only extras install."""
NOT_AT_IMPORT = [*EXTRAS, "optuna", "plotly"]
STANDARD = """
import asyncio, concurrent.futures.process, decimal, doctest, http.server, imaplib, logging.config, multiprocessing.pool
import pydoc, sqlite3, statistics, tarfile, unittest.mock, xml.dom.minidom, xmlrpc.server, zipfile
"""
"""Imports that take about 0.1 s of CPU on a machine that is not busy, and more with ours on one that is."""
TIMES = 3.0
"""Importing ours may take so many times that: 2.1 with Pydantic 2.14, 2.5 with Pydantic 2.10."""
STUDY = """
study: alone
objective: nowhere:train
metric: {name: loss}
space: {x: {type: float, low: 0, high: 1}}
search: {method: asha, configs: 9, max_resource: 9}
cluster: {kind: local, workers: 2}
"""


def assert_core_works(python: Path, folder: Path, blocked: list[str]) -> None:
    (folder / "home").mkdir(mode=0o700)
    file = folder / "study.yaml"
    file.write_text(STUDY)
    done = subprocess.run(
        [python, SCRIPT, file, folder / "home", *blocked], cwd=folder, capture_output=True, text=True, timeout=600
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert re.search(r"status: finished jobs: \d\d", told) and "clean:" in told, told
    assert re.search(r"time to the end +\d+ s", told), told
    assert (folder / "home" / "studies" / "alone" / "report.html").is_file()
    assert "needs the package" in told and "pip install 'hpo-core[all]'" in told, told
    assert "Traceback" not in told and done.stdout.endswith("loaded: []\n"), told


def test_the_core_works_where_the_packages_of_extras_are_absent(tmp_path: Path) -> None:
    assert_core_works(Path(sys.executable), tmp_path, EXTRAS)


def test_importing_study_and_spec_is_fast_and_loads_no_heavy_package(tmp_path: Path) -> None:
    """With bytecode, which an installed package has: the first import writes it."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    code = f"import sys; from hpo_core import Study, StudySpec;print(sorted(set({NOT_AT_IMPORT!r}) & set(sys.modules)))"
    for written in (STANDARD, code):
        cpu_seconds(written, environment)
    ours, standard = [], []
    while not ours or (min(ours) > TIMES * min(standard) and len(ours) < 20):
        standard.append(cpu_seconds(STANDARD, environment)[0])
        used, printed = cpu_seconds(code, environment)
        ours.append(used)
        assert printed == "[]\n"
    assert min(ours) <= TIMES * min(standard), (ours, standard)


def cpu_seconds(code: str, environment: dict[str, str]) -> tuple[float, str]:
    """What a new interpreter used for it, and printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


@pytest.mark.slow
def test_a_plain_install_has_the_core_and_names_the_extra_of_the_rest(tmp_path: Path) -> None:
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", ROOT],
        check=True, timeout=1600, env=os.environ | {"PYTHONPATH": ""},
    )  # fmt: skip
    found = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True)
    installed = {line.partition("==")[0] for line in found.stdout.splitlines()}
    assert not installed & {"prefect", "dask", "distributed", "mlflow", "torch", "nvidia-ml-py", "scipy"}
    assert_core_works(python, tmp_path, EXTRAS)
