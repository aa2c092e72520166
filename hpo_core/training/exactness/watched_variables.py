"""Which variables a ``LoopWatch`` looks at: those of a function, or those of the objects of another library's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from hpo_core.training.exactness.fingerprints import is_known_object, is_torch_module

Variables = Callable[[], Iterator[tuple[str, Any]]]
_SWITCHED = "training"
"""A torch module's attribute that evaluation switches off and on."""


def variables_of_function(frame: FrameType) -> Variables:
    """Local variables, attributes of ``self``, and the module's variables that the function names."""

    def found() -> Iterator[tuple[str, Any]]:
        local = dict(frame.f_locals)
        yield from local.items()
        if "self" in local and is_known_object(local["self"]) and not is_torch_module(local["self"]):
            yield from ((f"self.{name}", value) for name, value in vars(local["self"]).items())
        variables = frame.f_globals
        yield from (
            (name, variables[name]) for name in frame.f_code.co_names if name in variables and name not in local
        )

    return found


def variables_of_objects(owners: Mapping[str, Any], loaders: Mapping[str, Any]) -> Variables:
    """Attributes of these objects, named ``Owner.attribute``, and data loaders."""

    def found() -> Iterator[tuple[str, Any]]:
        yield from loaders.items()
        for owner, item in owners.items():
            yield from ((f"{owner}.{name}", value) for name, value in list(vars(item).items()) if name != _SWITCHED)

    return found
