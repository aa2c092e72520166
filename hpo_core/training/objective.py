"""Imports the training function that ``package.module:function`` names."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.training.error_text import traceback_tail


def load_objective(objective: str, pythonpath: Sequence[str] = ()) -> Callable[..., Any]:
    """Import and return the function, with ``pythonpath`` in front of ``sys.path``.

    Raises:
        SpecError: there is no such module or function.
        ObjectiveError: the module raised while it was imported, or touched CUDA.
    """
    module_name, colon, function_name = objective.partition(":")
    if not colon or not module_name or not function_name:
        raise SpecError(f"objective = {objective!r} must have the form package.module:function.")
    sys.path[:0] = [folder for folder in pythonpath if folder not in sys.path]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(missing + "."):
            raise _import_failed(objective, error) from error
        raise SpecError(
            f"objective = {objective!r}: there is no module {missing!r} on {sys.path}. Correct the name, or add "
            "the "
            "folder that holds it to `pythonpath` of the study."
        ) from error
    except BaseException as error:
        raise _import_failed(objective, error) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        found = [name for name, item in vars(module).items() if callable(item) and not name.startswith("_")]
        raise SpecError(
            f"objective = {objective!r}: module {module_name!r} has no function {function_name!r}; "
            f"it has {', '.join(found[:20]) or 'none at all'}. Correct the name."
        )
    if _cuda_is_initialized():
        raise ObjectiveError(
            f"objective = {objective!r}: module {module_name!r} used CUDA while it was imported, and a process "
            "forked "
            "after that cannot. Move everything that touches a GPU into the training function."
        )
    return function  # type: ignore[no-any-return]


def _cuda_is_initialized() -> bool:
    """Whether anything in this process initialized CUDA. Asks the driver: torch does not know of everything."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False  # nobody has loaded it
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)  # without initialization: error 3


def _import_failed(objective: str, error: BaseException) -> ObjectiveError:
    return ObjectiveError(
        f"objective = {objective!r} cannot be imported: {type(error).__name__}: {error}. Make the module import "
        f"without error in a fresh interpreter of the workers' environment.\n{traceback_tail(error)}"
    )
