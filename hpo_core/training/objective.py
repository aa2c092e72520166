"""Imports the training function that ``package.module:function`` names."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.model.short_text import did_you_mean, some
from hpo_core.spec import sent_functions
from hpo_core.spec.module_source import read_module
from hpo_core.training.user_code import own_frames

ARGUMENTS = {
    "objective": "the trial",
    "data.load": "the path of a partition",
    "build": "the parameters, a dict",
    "packing.demand.function": "the parameters, a dict",
    "evaluate": "the trial",
}
"""The one argument of each function that a study names."""


def no_module(setting: str, name: str, missing: str, folders: Sequence[Path | str]) -> str:
    places = [str(Path(folder).resolve()) for folder in folders]
    there = [path.stem for place in places for path in Path(place).glob("*.py")]
    near = "" if "." in missing else did_you_mean(missing, there)
    hint = f" D{near[1:]}" if near else ""
    return (
        f"{setting} = {name!r}: there is no module {missing!r} in {some(dict.fromkeys(places))}, nor is it installed."
        f"{hint} Correct the name, put the file back, or add the folder that holds it to `pythonpath` of the study."
    )


def refuse_missing(setting: str, objective: str, folders: Sequence[str]) -> None:
    """Refuse a function whose module, or whose name in it, its source shows to be missing; nothing is imported.

    Raises:
        SpecError: there is no such module, or its statements bind no such name.
    """
    module, _, function = objective.partition(":")
    try:
        source = read_module(module, folders)
    except SyntaxError:
        return  # the import says where
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            return  # a package may look for its modules elsewhere
        raise SpecError(no_module(setting, objective, module, folders or ["."])) from None
    names = None if source is None else source.names()
    if source is not None and names is not None and function not in names:
        raise SpecError(no_function(setting, objective, filter(source.definition, names)))


def no_function(setting: str, objective: str, found: Iterable[str]) -> str:
    module, _, function = objective.partition(":")
    names = [name for name in found if not name.startswith("_")]
    cure = did_you_mean(function, names) or f"it has {some(names) or 'none at all'}."
    return f"{setting} = {objective!r}: module {module!r} has no function {function!r}; {cure} Correct the name."


def module_file(module: str, folders: Iterable[str]) -> Path | None:
    """The file of a module below one of these folders, without importing anything; None: in none of them."""
    for folder in folders:
        place = Path(folder, *module.split("."))
        for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


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
    if module_name.endswith(".py"):
        cure = f"{Path(module_name).stem}:{function_name}"
        raise SpecError(f"{setting} = {objective!r} names a file; name the module: {cure}.")
    sys.path[:0] = [folder for folder in pythonpath if folder not in sys.path]
    if (sent := sent_functions.load(objective)) is not None:
        check_signature(setting, objective, sent)
        _refuse_cuda(setting, objective)
        return sent
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
        found = [name for name, item in vars(module).items() if callable(item)]
        raise SpecError(no_function(setting, objective, found))
    check_signature(setting, objective, function)
    _refuse_cuda(setting, objective)
    return function  # type: ignore[no-any-return]


def _refuse_cuda(setting: str, objective: str) -> None:
    if cuda_is_initialized():
        raise ObjectiveError(
            f"{setting} = {objective!r} used CUDA while it was imported, or holds a tensor on a GPU, and a process "
            "forked after that cannot use it. Move everything that touches a GPU into the training function."
        )


def cuda_is_initialized() -> bool:
    driver = _cuda_driver()
    # without initialization: error 3
    return driver is not None and bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)


def cuda_still_works() -> bool:
    driver = _cuda_driver()
    return driver is None or driver.cuCtxSynchronize() in _CUDA_IS_WELL


_CUDA_IS_WELL = (0, 3, 201)
"""Results of a driver's call: success, not initialized, no context in this thread."""


def _cuda_driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def check_signature(setting: str, objective: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with one argument; of a class that is left to its instance.

    Raises:
        SpecError: its signature, or that a call of it trains nothing: a coroutine, a generator.
    """
    if inspect.isclass(function):  # what is called is an object of it
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a compiled function
        return
    try:
        signature.bind(None)
    except TypeError:
        name, expected = objective.rpartition(":")[2], ARGUMENTS.get(setting, "one")
        raise SpecError(
            f"{setting} = {objective!r}: {name}() is called with one argument, {expected}, and its signature is "
            f"{signature}. Correct it."
        ) from None
    for made, is_such in _RUN_LATER.items() if setting == "objective" else ():
        if is_such(function) or is_such(getattr(function, "__call__", None)):  # noqa: B004 - of an object
            raise SpecError(
                f"{setting} = {objective!r}: a call only makes {made}, and nothing of it would run. Make it a plain "
                "function, without async and yield."
            )


def objective_callable(found: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make an instance of a class; return anything else as it is.

    Raises:
        ObjectiveError: the class needs arguments, or its instances cannot be called.
    """
    if not inspect.isclass(found):
        return found
    name = found.__name__
    try:
        made = found()
    except TypeError as error:
        raise ObjectiveError(
            f"{name} is a class, and {name}() failed: {error}. Give an object of it; a study file names one that its "
            f"module has made: `objective = {name}(...)`."
        ) from error
    if not callable(made):
        raise ObjectiveError(f"{name} is a class without __call__(self, trial), so it is no objective.")
    return made


_RUN_LATER: dict[str, Callable[[Any], bool]] = {
    "a coroutine": inspect.iscoroutinefunction,
    "a generator": inspect.isgeneratorfunction,
    "an asynchronous generator": inspect.isasyncgenfunction,
}
"""Objects that a function may return instead of running, with their tests."""


def _import_failed(setting: str, objective: str, error: BaseException) -> ObjectiveError:
    return ObjectiveError(
        f"{setting} = {objective!r} cannot be imported: {type(error).__name__}: {error}\n{own_frames(error)}"
        "Make the module import without error in a fresh interpreter of the workers' environment."
    )
