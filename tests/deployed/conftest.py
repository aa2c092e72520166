"""The services of tests/flows, for deployed flows, and permissions for code that is written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_flows.deployed.permissions import Permissions
from tests.flows.conftest import hpo, make_hpo

__all__ = ["hpo", "make_hpo"]

STUDY = """
study: inner
objective: models.net:fit
metric: {name: loss}
space: {x: {type: float, low: 0, high: 1}}
search: {method: random, configs: 3}
pythonpath: [%s]
"""

NET = """
import os
from functools import cache, partial
from os import remove as delete, system
from .inner import fit_inner
from .listed import *
try:
    from os import getcwd as where
except ImportError:
    def where(): ...

def fit(trial): ...
def load(path): ...
@cache
def build(params): ...
class Net: ...

fit_small = partial(fit, size=1)
fit_alias = fit
erase = os.remove
either = fit if os.path else os.system
if True:
    from subprocess import run
def later():
    global late
    late = os.system
late = fit
"""
INNER = "def fit_inner(trial): ..."
LISTED = "from shutil import *"


@pytest.fixture
def permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Permissions:
    """Allow module ``models``, the studies of a folder, and one Dask scheduler."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("raise RuntimeError('nothing is imported to look at it')")
    for name, code in {"net": NET, "inner": INNER, "listed": LISTED}.items():
        (tmp_path / "models" / f"{name}.py").write_text(code)
    folder = tmp_path / "studies"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.yaml").write_text(STUDY % tmp_path)
    (folder / "notes.yaml").write_text("just: notes")
    (tmp_path / "secret.yaml").write_text(STUDY % tmp_path)
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (folder / "out").symlink_to(tmp_path)
    return Permissions(("models",), folder.resolve(), (tmp_path.resolve(),), ("tcp://dask:8786",))
