"""Looks for the functions that a study names, by reading their modules; nothing is imported or run.

A module that is not there, a function that is not in it, and one that cannot be called with one argument are found
within milliseconds, before a cluster and a server are started for them. What reading cannot tell is left to the import
on the workers.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import did_you_mean, some
from hpo_core.spec.module_source import read_module

ARGUMENTS = {
    "objective": "the trial",
    "data.load": "the path of a partition",
    "build": "the parameters, a dict",
    "evaluate": "the trial",
}
"""The one argument of each function that a study names."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_function(setting: str, name: str, folders: Sequence[str]) -> None:
    """Refuse a function that is not there, or takes other arguments.

    Args:
        setting: what names it: ``objective``, ``data.load`` or ``build``.
        name: ``package.module:function``.
        folders: where modules are looked for first (``pythonpath``).

    Raises:
        SpecError: it cannot be used, whatever its import does.
    """
    module, _, function = name.partition(":")
    places = [str(Path(folder).resolve()) for folder in (*folders, ".")]
    try:
        source = read_module(module, places)
    except ModuleNotFoundError as error:
        missing = error.name or module
        package = missing.rpartition(".")[0]
        above = read_module(package, places) if package else None
        if package and (above is None or above.is_dynamic()):
            return  # a package without __init__, or one that finds its modules by itself
        raise SpecError(no_module(setting, name, missing, places)) from None
    except SyntaxError as error:
        raise SpecError(
            f"{setting} = {name!r} cannot be imported: {error.msg} ({error.filename}, line {error.lineno}). Correct "
            "the file."
        ) from None
    if source is None:
        return
    makers = source.bindings.get(function, [])
    if not makers:
        if not source.may_have(function):
            found = [bound for bound, nodes in source.bindings.items() if any(isinstance(n, _Function) for n in nodes)]
            raise SpecError(no_function(setting, name, [bound for bound in found if not bound.startswith("_")]))
    elif len(makers) == 1 and isinstance(made := makers[0], _Function) and not made.decorator_list:
        check_arguments(setting, name, made.args, f"{source.file}, line {made.lineno}")


def no_function(setting: str, name: str, functions: Sequence[str]) -> str:
    """The message for a function that a module lacks."""
    module, _, function = name.partition(":")
    cure = did_you_mean(function, functions) or f"it has {some(functions) or 'none at all'}."
    return f"{setting} = {name!r}: module {module!r} has no function {function!r}; {cure} Correct the name."


def no_module(setting: str, name: str, missing: str, folders: Sequence[Path | str]) -> str:
    """The message for a module that is not there."""
    places = [str(Path(folder).resolve()) for folder in folders]
    near = "" if "." in missing else did_you_mean(missing, _modules_in(places))
    hint = f" D{near[1:]}" if near else ""
    return (
        f"{setting} = {name!r}: there is no module {missing!r} in {some(dict.fromkeys(places))}, nor is it installed."
        f"{hint} Correct the name, or add the folder that holds it to `pythonpath` of the study."
    )


def check_arguments(setting: str, name: str, arguments: ast.arguments, where: str) -> None:
    """Refuse a function that cannot be called with one argument.

    Raises:
        SpecError: it takes none, or needs more.
    """
    places = [*arguments.posonlyargs, *arguments.args]
    needed = len(places) - len(arguments.defaults)
    keywords = [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    if (places or arguments.vararg) and needed <= 1 and not keywords:
        return
    takes = f"needs {', '.join([*(place.arg for place in places[:needed]), *keywords])}" if places else "takes none"
    raise SpecError(wrong_arguments(setting, name, f"{takes} ({where})"))


def wrong_arguments(setting: str, name: str, takes: str) -> str:
    """The message for a function that cannot be called with one argument."""
    function, expected = name.partition(":")[2], ARGUMENTS.get(setting, "one")
    return f"{setting} = {name!r}: {function}() is called with one argument, {expected}, and {takes}. Correct it."


def _modules_in(folders: Sequence[str]) -> list[str]:
    return [path.stem for folder in folders for path in Path(folder).glob("*.py")]
