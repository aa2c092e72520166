"""Functions of a notebook or a script: named by their content, sent by value, kept beside their study.

A function that no other process can import is pickled (cloudpickle) with what it refers to, as that is at this moment,
into the study's folder: ``code/DIGEST.pkl``. The study names it ``by_value.dDIGEST:NAME``.
So whoever trains, resumes, reruns or audits the study runs this function and no other. The same script may have another
pickle in another process, so a study that goes on takes the one that it keeps, unless it is told to take another.

Only :func:`load` unpickles anything, and only the process that trains calls it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
import pickletools
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.security.private_files import check_folder, open_private, private_folder, write_private

MOST_BYTES = 16 * 1024 * 1024
"""Largest function with what it refers to: data belong in a file."""
FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""Pattern of the name of a function: ``package.module:function``."""
_NAME = re.compile(r"by_value(?:\.s[0-9a-f]{16})?\.d([0-9a-f]{64}):([A-Za-z_]\w*)")
"""Earlier development versions named a digest of the source before that of the pickle."""


class Sent(NamedTuple):
    """A pickled function."""

    name: str
    """Name in the study in place of ``module:function``."""
    content: bytes


_given: dict[str, Sent] = {}
"""Functions that settings of this process were given, by name."""
_roots: dict[str, list[str]] = {}
"""Folders that functions given to settings, or what they refer to, are imported from, by name."""


def function_name(value: Any) -> Any:
    """Name of a function that a setting is given: ``module:function``, or by value; what is no function as it is."""
    if not callable(value):
        return value
    if not must_be_sent(value):
        name = f"{value.__module__}:{value.__qualname__}"
        _roots[name] = _folders([value.__module__])
        return name
    sent = pickled(value)
    _given[sent.name] = sent
    return sent.name


if TYPE_CHECKING:
    FunctionName = Any
    """A setting that is given a function, or its name; it holds the name."""
else:
    FunctionName = Annotated[str, BeforeValidator(function_name)]


def folders_of(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(folder for name in names for folder in _roots.get(name, ())))


def given(name: str) -> Sent | None:
    return _given.get(name)


def must_be_sent(function: Callable[..., Any]) -> bool:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or not name.isidentifier():
        return True
    found = sys.modules.get(module)
    return getattr(found, name, None) is not function or _is_made(found)


def _is_made(module: types.ModuleType | None) -> bool:
    # True if a module was made by this process, so that no other one can import it.
    return module is not None and module.__name__ != "__main__" and getattr(module, "__spec__", None) is None


def pickled(function: Callable[..., Any]) -> Sent:
    """Pickle a function with all that it refers to.

    Raises:
        SpecError: it holds something that cannot be pickled, or is too large.
    """
    import cloudpickle

    name = called_name(function)
    called = name if name.isidentifier() else "function"
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if _is_made(module):  # nobody else can import it
        cloudpickle.register_pickle_by_value(module)
    try:
        content = _PYTHON + cloudpickle.dumps(function)
    except Exception as error:  # whatever the __reduce__ of an object raises
        raise SpecError(
            f"{called}() cannot be sent to the workers: {type(error).__name__}: {error}. Make what it reads inside the "
            "function, or put the function into a module of its own."
        ) from error
    if len(content) > MOST_BYTES:
        raise SpecError(
            f"{called}() refers to {len(content):,} bytes, more than the {MOST_BYTES:,} that are sent with a function. "
            "Load large data inside the function, from a file."
        )
    sent = f"by_value.d{hashlib.sha256(content).hexdigest()}:{called}"
    _roots[sent] = _folders([name for name in names_in(content) if name in sys.modules and name != "__main__"])
    return Sent(sent, content)


def names_in(content: bytes) -> list[str]:
    """Names in a pickled function that may be modules'; nothing is unpickled."""
    texts = {text for _, text, _ in pickletools.genops(content.partition(b"\n")[2]) if isinstance(text, str)}
    return sorted(text for text in texts if all(map(str.isidentifier, text.split("."))))


_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}\n".encode()
"""First line of a pickled function: byte code is of one version."""
_INSTALLED = frozenset(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def _folders(modules: Sequence[str]) -> list[str]:
    found = []
    for module in modules:
        file = getattr(sys.modules.get(module), "__file__", None)
        path = Path(file or "/").resolve()
        if file is not None and not _INSTALLED & set(path.parents):
            found.append(str(path.parents[module.count(".") + (path.name == "__init__.py")]))
    return list(dict.fromkeys(found))


def called_name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def digest_of(name: str | None) -> str | None:
    found = _NAME.fullmatch(name or "")
    return found and found[1]


def plain_name(name: str | None) -> str:
    found = _NAME.fullmatch(name or "")
    return name or "" if found is None else f"by_value:{found[2]}"


def names_value(name: str | None) -> bool:
    return (name or "").partition(":")[0].partition(".")[0] == "by_value"


def short_name(name: str | None) -> str:
    """Name of a function for people: of one sent by value its own, and the first figures of its digest."""
    found = _NAME.fullmatch(name or "")
    return name or "" if found is None else f"{found[2]} (by value, {found[1][:8]})"


FOLDER = "code"
"""In the study's folder."""
_PLACE = re.compile(r"(/.*)/code/(by_value(?:\.s[0-9a-f]{16})?\.d[0-9a-f]{64}:[A-Za-z_]\w*)")


def keep(name: str, study_folder: Path, studies: Path) -> None:
    """See that a study's folder has a function that was sent by value.

    Raises:
        SpecError: nobody has it, see :func:`find`.
        StorageError: the folder cannot be written, or is not this user's alone.
    """
    content = find(name, study_folder, studies)
    folder = private_folder(study_folder / FOLDER, below=study_folder)
    write_private(folder / f"{digest_of(name)}.pkl", content, durable=True)


def find(name: str, study_folder: Path, studies: Path) -> bytes:
    """A pickled function: from this process, the study's folder, or another study of the same home.

    Args:
        studies: folder of the studies' folders.

    Raises:
        SpecError: nobody has it, or a file is not what its name says.
    """
    if (sent := given(name)) is not None:
        return sent.content
    file = f"{FOLDER}/{digest_of(name)}.pkl"
    for folder in [study_folder, *(found.parents[1] for found in sorted(studies.glob(f"*/{file}")))]:
        with contextlib.suppress(FileNotFoundError):
            return read(name, folder)
    raise SpecError(
        f"{short_name(name)} was sent by value, and no study in {studies} keeps it ({file}). Put the file back, call "
        "hpo.tune with the function itself, or put it into a module and name that: module:function."
    )


def read(name: str, study_folder: Path) -> bytes:
    """The content of a function that was sent by value, checked against its name; nothing is unpickled.

    Raises:
        FileNotFoundError: it is not there.
        SpecError: it is not what the study names.
        StorageError: the file or its folder is a link, or another user's.
    """
    digest = digest_of(name)
    path = study_folder / FOLDER / f"{digest}.pkl"
    check_folder(path.parent, below=study_folder)
    with open_private(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if hashlib.sha256(content).hexdigest() != digest:
        raise SpecError(f"{path} is not the function that the study began with; put that one back.")
    return content


def placed(name: str, study_folder: str | Path) -> str:
    """The name that a training process loads: a place for a function sent by value, else the name itself.

    >>> placed("train:main", "/home/studies/a")
    'train:main'
    """
    return name if digest_of(name) is None else f"{Path(study_folder).resolve() / FOLDER}/{name}"


def load(place: str) -> Callable[..., Any] | None:
    """The function at a place that :func:`placed` gave; None where it is the name of one that is imported.

    Raises:
        SpecError: the file is not there, or is not what the study names.
        ObjectiveError: it cannot be unpickled here.
    """
    found = _PLACE.fullmatch(place)
    if found is None:
        return None
    folder, name = Path(found[1]), found[2]
    function = name.partition(":")[2]
    try:
        content = read(name, folder)
    except FileNotFoundError:
        raise SpecError(
            f"{function}() was sent by value, and its file {folder / FOLDER / str(digest_of(name))}.pkl is not there. "
            "Where the study's folder was removed, put it back, or begin a new study with the function."
        ) from None
    version, _, content = content.partition(b"\n")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != here.encode():
        raise ObjectiveError(
            f"{function}() was sent by value by Python {version[:9].decode(errors='replace')}, and the workers run "
            f"Python {here}: byte code is of one version. Use the same one, or put the function into a module."
        )
    try:
        return pickle.loads(content)  # type: ignore[no-any-return]
    except BaseException as error:
        cure = "Install what it imports in the workers' environment"
        if isinstance(error, ModuleNotFoundError):
            cure += ", or add the folder of the module to pythonpath"
        elif isinstance(error, AttributeError) and "__main__" in str(error):
            cure = "Put what it names into a module of its own: it cannot be sent by value"
        raise ObjectiveError(
            f"{function}() was sent by value and cannot be loaded here: {type(error).__name__}: {error}. {cure}."
        ) from error
