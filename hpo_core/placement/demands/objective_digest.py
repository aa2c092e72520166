"""Digest of a training function's source, so that what was measured of another version is not taken for it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def objective_digest(objective: str, pythonpath: Sequence[str] = ()) -> str:
    """SHA-256 of the file that holds the function, and of its name; nothing of the user's is imported.

    A class or a callable object counts by its module's file, too. What that module imports is not part of it: where
    a model is defined in another file, what was measured stays in use until it is forgotten. Where no file is found
    (a namespace package, an extension module) it is the digest of the name alone.

    Args:
        objective: ``package.module:function``.
        pythonpath: folders that are searched before ``sys.path``.
    """
    found = hashlib.sha256(objective.encode(errors="backslashreplace"))
    file = _file_of(objective.partition(":")[0], pythonpath)
    if file is not None:
        found.update(b"\0" + file)
    return found.hexdigest()


def _file_of(module: str, pythonpath: Sequence[str]) -> bytes | None:
    """The source of a module, found by the names above it; parent packages are not imported."""
    try:
        spec = _spec_of(module, pythonpath)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        return Path(spec.origin).read_bytes()
    except (OSError, ImportError, ValueError, AttributeError, SyntaxError):
        return None


def _spec_of(module: str, pythonpath: Sequence[str]) -> ModuleSpec | None:
    top, *below = module.split(".")
    if top in sys.builtin_module_names or not all([top, *below]):
        return None
    spec = PathFinder.find_spec(top, [*pythonpath, *sys.path])
    if spec is None and top not in sys.modules:  # an editable install has a finder of its own
        spec = importlib.util.find_spec(top)
    elif spec is None:
        spec = sys.modules[top].__spec__
    name = top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec
