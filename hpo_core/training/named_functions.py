"""Looks for the functions that a study names, by reading their modules; nothing is imported or run.

A module that is not there, a function that is not in it, and one that cannot be called with one argument are found
within milliseconds, before a cluster and a server are started for them. What reading cannot tell is left to the import
on the workers.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import some

ARGUMENTS = {
    "objective": "the trial",
    "data.load": "the path of a partition",
    "build": "the parameters, a dict",
    "evaluate": "the trial",
}
"""The one argument of each function that a study names."""
_MAX_FILE_BYTES = 1_000_000
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_UNREADABLE = ("globals", "locals", "vars", "exec")
"""Calls that may make a variable of the module whose name is nowhere in its text."""


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
    roots = [Path(folder).resolve() for folder in (*folders, ".")]
    file = _source_of(setting, name, module, roots)
    if file is None or file.stat().st_size > _MAX_FILE_BYTES:
        return
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        raise SpecError(
            f"{setting} = {name!r} cannot be imported: {error.msg} ({file}, line {error.lineno}). Correct the file."
        ) from None
    except (OSError, ValueError, RecursionError):
        return
    found = list(_bindings(tree))
    makers = [node for bound, node in found if bound == function]
    if not makers:
        if not _is_open(tree, function):
            functions = [bound for bound, node in found if isinstance(node, _Function) and not bound.startswith("_")]
            raise SpecError(no_function(setting, name, functions))
    elif len(makers) == 1 and isinstance(made := makers[0], _Function) and not made.decorator_list:
        check_arguments(setting, name, made.args, f"{file}, line {made.lineno}")


def no_function(setting: str, name: str, functions: Sequence[str]) -> str:
    """The message for a function that a module lacks."""
    module, _, function = name.partition(":")
    near = difflib.get_close_matches(function, functions, 1)
    cure = f"did you mean {near[0]!r}?" if near else f"it has {some(functions) or 'none at all'}. Correct the name."
    return f"{setting} = {name!r}: module {module!r} has no function {function!r}; {cure}"


def no_module(setting: str, name: str, missing: str, folders: Sequence[Path | str]) -> str:
    """The message for a module that is not there."""
    places = [str(Path(folder).resolve()) for folder in folders]
    near = difflib.get_close_matches(missing.rpartition(".")[2], _modules_in(places), 1)
    hint = f" Did you mean {near[0]!r}?" if near and "." not in missing else ""
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


def _source_of(setting: str, name: str, module: str, roots: Sequence[Path]) -> Path | None:
    """The module's file; None where it lies elsewhere than in these folders, or cannot be read.

    Raises:
        SpecError: there is no such module.
    """
    parts = module.split(".")
    for root in roots:
        stem = root.joinpath(*parts)
        for file in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if file.is_file():
                return file
        if _is_there(root, parts):
            return None  # a package without __init__, or a compiled module
    for root in roots:
        package = root / parts[0] / "__init__.py"
        if package.is_file() and len(parts) > 1:
            text = package.read_text("utf-8", "replace")
            if "__path__" in text or "sys.modules" in text:
                return None  # it finds its modules by itself
            missing = next(
                ".".join(parts[:depth]) for depth in range(2, len(parts) + 1) if not _is_there(root, parts[:depth])
            )
            raise SpecError(no_module(setting, name, missing, roots))
    try:
        known = importlib.util.find_spec(parts[0]) is not None
    except (ImportError, ValueError, AttributeError):
        known = True
    if known:
        return None
    raise SpecError(no_module(setting, name, parts[0], roots))


def _is_there(root: Path, parts: Sequence[str]) -> bool:
    stem = root.joinpath(*parts)
    return stem.is_dir() or (stem.parent.is_dir() and any(stem.parent.glob(f"{stem.name}.*")))


def _modules_in(folders: Sequence[str]) -> list[str]:
    return [path.stem for folder in folders for path in Path(folder).glob("*.py")]


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Variables of a module, with what binds each: by its own statements, also below ``if``, ``try`` and the like."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Function | ast.ClassDef):
            yield node.name, node
            continue  # what is inside is no variable of the module
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node
        waiting += ast.iter_child_nodes(node)


def _is_open(tree: ast.Module, name: str) -> bool:
    """Whether the module may have a variable of this name that its own statements do not bind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return True
        if isinstance(node, _Function) and node.name == "__getattr__":
            return True
        if isinstance(node, ast.Global) and name in node.names:
            return True
        if (isinstance(node, ast.Name) and node.id in _UNREADABLE) or (
            isinstance(node, ast.Attribute) and node.attr == "modules"
        ):
            return True
    return False
