"""The callable that an Optuna objective's name stands for: a function, an instance, or a class without arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from hpo_core.model.errors import ObjectiveError


def objective_callable(found: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make an instance of a class; return anything else as it is.

    Raises:
        ObjectiveError: the class needs arguments, or its instances cannot be called.
    """
    if not inspect.isclass(found):
        return found
    name = found.__name__
    if not any("__call__" in vars(base) for base in found.__mro__):
        raise ObjectiveError(f"{name} is a class without __call__(self, trial), so it is no objective.")
    try:
        signature = inspect.signature(found)
    except ValueError:  # a class in C that does not tell
        signature = inspect.Signature()
    needed = [
        item.name
        for item in signature.parameters.values()
        if item.default is item.empty and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    if needed:
        raise ObjectiveError(
            f"{name} is a class that needs {', '.join(needed)}. Make an instance beside it in its module, such as "
            f"`objective = {name}({', '.join(f'{argument}=...' for argument in needed)})`, and name that instance."
        )
    return cast(Callable[[Any], Any], found())
