"""Training functions of a notebook or a script, sent by value and kept beside their study.

A function that no other process can import is pickled with what it refers to (cloudpickle) into the study's folder, as
``code/DIGEST.pkl``, its source beside it. The study names it ``by_value.DIGEST:NAME``: the name is the content, so that
whoever trains, resumes, reruns or audits the study runs this function and no other.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.security.private_files import open_private, private_folder, write_private

FOLDER = "code"
MOST_BYTES = 16 * 1024 * 1024
"""Largest function with what it refers to: data belong in a file."""
_OBJECTIVE = re.compile(r"by_value\.d([0-9a-f]{64}):([A-Za-z_]\w*)")
_PLACE = re.compile(r"(/.*)/([0-9a-f]{64})\.pkl:([A-Za-z_]\w*)")


class Sent(NamedTuple):
    """A pickled function."""

    objective: str
    """``objective`` of the study."""
    content: bytes
    source: str
    """Source text; empty where there is none, as for a function typed at a prompt."""


def must_be_sent(function: Callable[..., Any]) -> bool:
    """Whether another process cannot import a function by its name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or not name.isidentifier():
        return True
    return (
        getattr(sys.modules.get(module), name, None) is not function
        or getattr(sys.modules[module], "__file__", None) is None
    )


def pickled(function: Callable[..., Any]) -> Sent:
    """Pickle a function with all that it refers to.

    Raises:
        SpecError: it holds something that cannot be pickled, or is too large.
    """
    import cloudpickle

    try:
        content = cloudpickle.dumps(function)
    except Exception as error:  # whatever the __reduce__ of an object raises
        raise SpecError(
            f"objective: {_name_of(function)}() cannot be sent to the workers: {type(error).__name__}: {error}. Make "
            "what it refers to inside the function, or put the function into a module of its own."
        ) from error
    if len(content) > MOST_BYTES:
        raise SpecError(
            f"objective: {_name_of(function)}() refers to {len(content):,} bytes, more than the {MOST_BYTES:,} that "
            "are sent with a function. Load large data inside the function, from a file."
        )
    return Sent(f"by_value.d{hashlib.sha256(content).hexdigest()}:{_name_of(function)}", content, source_of(function))


def source_of(function: Callable[..., Any]) -> str:
    """Source text of a function or of the class of a callable object; empty where there is none."""
    for one in (function, type(function)):
        try:
            return inspect.getsource(one)
        except (OSError, TypeError):
            continue
    return ""


def keep(sent: Sent, study_folder: Path) -> None:
    """Write a function and its source into the study's folder.

    Raises:
        StorageError: the folder cannot be written, or is not this user's alone.
    """
    digest = digest_of(sent.objective)
    folder = private_folder(study_folder / FOLDER, below=study_folder)
    write_private(folder / f"{digest}.pkl", sent.content, durable=True)
    write_private(folder / f"{digest}.py", sent.source.encode(), durable=True)


def digest_of(objective: str | None) -> str | None:
    """SHA-256 of a function that was sent by value, from its name; None for one that is imported."""
    found = _OBJECTIVE.fullmatch(objective or "")
    return found and found[1]


def kept_source(objective: str, study_folder: Path) -> str | None:
    """Source text that was kept with a function sent by value; None where there is none."""
    try:
        with open_private(study_folder / FOLDER / f"{digest_of(objective)}.py", "rb") as file:
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return None


def placed(objective: str, study_folder: str | Path) -> str:
    """What a training process loads: the file of a function that was sent by value, or the name as it is.

    >>> placed("train:main", "/home/studies/a")
    'train:main'
    """
    found = _OBJECTIVE.fullmatch(objective)
    return objective if found is None else f"{Path(study_folder).resolve() / FOLDER / found[1]}.pkl:{found[2]}"


def load(place: str) -> Callable[..., Any] | None:
    """The function at a place that :func:`placed` gave; None where it is the name of one that is imported.

    Raises:
        SpecError: the file is not there, or is not what the study names.
        ObjectiveError: it cannot be unpickled here.
    """
    found = _PLACE.fullmatch(place)
    if found is None:
        return None
    path = Path(found[1]) / f"{found[2]}.pkl"
    try:
        with open_private(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(
            f"objective: {found[3]}() was sent by value, and its file {path} is gone. Put it back, or begin a new "
            "study with the function."
        ) from None
    if hashlib.sha256(content).hexdigest() != found[2]:
        raise SpecError(f"objective: {path} is not the function that the study began with; put that one back.")
    import pickle

    try:
        function = pickle.loads(content)
    except BaseException as error:
        raise ObjectiveError(
            f"objective: {found[3]}() was sent by value and cannot be loaded here: {type(error).__name__}: {error}. "
            "Install what it imports in the workers' environment."
        ) from error
    return function  # type: ignore[no-any-return]


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "function"
