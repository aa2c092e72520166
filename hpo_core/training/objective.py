"""Imports the training function that ``package.module:function`` names."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.training.error_text import own_frames
from hpo_core.training.named_functions import no_function, no_module, wrong_arguments


def load_objective(objective: str, pythonpath: Sequence[str] = (), *, setting: str = "objective") -> Callable[..., Any]:
    """Import and return the function, with ``pythonpath`` in front of ``sys.path``.

    Args:
        setting: what names it, for messages; the functions of other settings are called with one argument as well.

    Raises:
        SpecError: there is no such module or function, or it cannot be called with one argument.
        ObjectiveError: the module raised while it was imported, or touched CUDA.
    """
    module_name, colon, function_name = objective.partition(":")
    if not colon or not module_name or not function_name:
        raise SpecError(f"{setting} = {objective!r} must have the form package.module:function.")
    sys.path[:0] = [folder for folder in pythonpath if folder not in sys.path]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(missing + "."):
            raise _import_failed(setting, objective, error) from error
        raise SpecError(no_module(setting, objective, missing, pythonpath or ["."])) from error
    except BaseException as error:
        raise _import_failed(setting, objective, error) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        found = [name for name, item in vars(module).items() if callable(item) and not name.startswith("_")]
        raise SpecError(no_function(setting, objective, found))
    _check_arguments(setting, objective, function)
    if _cuda_is_initialized():
        raise ObjectiveError(
            f"{setting} = {objective!r}: module {module_name!r} used CUDA while it was imported, and a process forked "
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


def _check_arguments(setting: str, objective: str, function: Callable[..., Any]) -> None:
    if inspect.isclass(function):  # what is called is an object of it
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a compiled function
        return
    try:
        signature.bind(None)
    except TypeError:
        raise SpecError(wrong_arguments(setting, objective, f"its signature is {signature}")) from None


def _import_failed(setting: str, objective: str, error: BaseException) -> ObjectiveError:
    return ObjectiveError(
        f"{setting} = {objective!r} cannot be imported: {type(error).__name__}: {error}\n{own_frames(error)}"
        "Make the module import without error in a fresh interpreter of the workers' environment."
    )
