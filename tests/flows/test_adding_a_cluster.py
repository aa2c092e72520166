"""The README of hpo_flows.dask, "Add a cluster kind": a copy of the code with these additions runs a study."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args

import pytest

from hpo_core.spec.sections import Cluster
from hpo_flows.dask.clusters import KINDS, kind_class
from hpo_flows.dask.clusters.kind import ClusterKind

ROOT = Path(__file__).parents[2]
STUDY = """
study: pocketed
objective: tests.flows.objectives:good
metric: {name: loss}
space: {x: {type: float, low: -1, high: 1}}
search: {method: random, configs: 3, max_resource: 1}
cluster: {kind: pocket, workers: 2}
tracking: {mlflow: "off"}
"""


def test_every_kind_of_settings_has_a_class_that_starts_it() -> None:
    union, _ = get_args(Cluster)
    assert {settings.model_fields["kind"].default for settings in get_args(union)} == set(KINDS)
    for kind in KINDS:
        assert issubclass(kind_class(kind), ClusterKind)


@pytest.mark.slow
def test_the_kind_of_the_page_runs_a_study(tmp_path: Path) -> None:
    code = tmp_path / "code"
    for source, name in ((ROOT / "hpo_core", "hpo_core"), (ROOT / "flows" / "hpo_flows", "hpo_flows")):
        shutil.copytree(source, code / name, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = additions()
    settings = code / "hpo_core" / "spec" / "sections.py"
    registry = code / "hpo_flows" / "dask" / "clusters" / "__init__.py"
    insert(settings, "\nCluster = Annotated[\n", before=blocks.pop("hpo_core/spec/sections.py") + "\n")
    insert(settings, "    Field(discriminator=", before=blocks.pop("hpo_core/spec/sections.py, Cluster"), last=True)
    insert(registry, '    "local": ', before=blocks.pop("flows/hpo_flows/dask/clusters/__init__.py, KINDS"))
    ((path, text),) = blocks.items()
    (code / path.removeprefix("flows/")).write_text(text)

    (tmp_path / "study.yaml").write_text(STUDY)
    arguments = ["tune", "study.yaml", "--no-prefect", "--json", "--home", "home"]
    done = subprocess.run(
        [sys.executable, "-m", "hpo_flows", *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(code), str(ROOT)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"status": "finished"' in done.stdout and '"jobs": 3' in done.stdout


def additions() -> dict[str, str]:
    page = (ROOT / "flows" / "hpo_flows" / "dask" / "README.md").read_text()
    section = page.partition("\n## Add a cluster kind\n")[2].partition("\n## ")[0]
    found = re.findall(r'^( *)```python title="([^"]+)"\n(.*?)^ *```$', section, re.DOTALL | re.MULTILINE)
    return {title: textwrap.dedent(text) for _, title, text in found}


def insert(file: Path, place: str, *, before: str, last: bool = False) -> None:
    """Write lines before a place of a file; with ``last``, as the last member of the union there."""
    text = file.read_text()
    assert text.count(place) == 1, place
    if last:
        head, tail = text.split(place)
        text = head.rstrip().removesuffix(",") + "\n    " + before.strip() + ",\n" + place + tail
    else:
        text = text.replace(place, before + place)
    file.write_text(text)
