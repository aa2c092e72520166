"""Digest of a training function's source, so that what was measured of another version is not taken for it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from hpo_core.spec.module_source import code_files

_OURS = ("hpo_core", "hpo_flows")


def objective_digest(objective: str, pythonpath: Sequence[str] = ()) -> str:
    """SHA-256 of the function's name and of the files with its code; nothing of the user's is imported.

    These are the file of its module and of all that this imports from the same places, as a model defined in another
    file decides what a job needs, too. Of an installed package it is the module's file alone. A class or a callable
    object counts by its module. Where no file is found (an extension module, code that lies on the workers alone) it
    is the digest of the name.

    Args:
        objective: ``package.module:function``.
        pythonpath: folders that are searched before ``sys.path``.
    """
    found = hashlib.sha256(objective.encode(errors="backslashreplace"))
    files = [(file.name, file.path) for file in code_files([objective], pythonpath, leave_out=_OURS)]
    if not files and (installed := _installed(objective.partition(":")[0])) is not None:
        files = [(installed.name, installed)]
    for name, path in files:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        found.update(f"\n{name} {hashlib.sha256(content).hexdigest()}".encode(errors="backslashreplace"))
    return found.hexdigest()


def _installed(module: str) -> Path | None:
    """The source of an installed module, found by the names above it; parent packages are not imported."""
    try:
        spec = _spec_of(module)
    except (OSError, ImportError, ValueError, AttributeError, SyntaxError):
        return None
    return None if spec is None or spec.origin is None or not spec.origin.endswith(".py") else Path(spec.origin)


def _spec_of(module: str) -> ModuleSpec | None:
    top, *below = module.split(".")
    if not top:
        return None
    spec = sys.modules[top].__spec__ if top in sys.modules else importlib.util.find_spec(top)
    name = top
    for part in below:
        if spec is None or spec.submodule_search_locations is None or not part:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec
