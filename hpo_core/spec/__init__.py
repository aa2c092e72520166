"""StudySpec: what a YAML file, Python, the command line and a UI form all fill in.

Unknown keys, wrong types and impossible ranges are refused here, once, with the place and the cure;
everything behind this package may trust what it gets.

Both names are imported when they are first asked for: workers and training processes use a module of it or two.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_core.spec.study_file import load_spec
    from hpo_core.spec.study_spec import StudySpec

__all__ = ["StudySpec", "load_spec"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hpo_core.spec' has no attribute {name!r}")
    module = import_module(f"hpo_core.spec.{'study_file' if name == 'load_spec' else 'study_spec'}")
    value = globals()[name] = getattr(module, name)
    return value
