"""Functions that were sent by value: kept beside their study, unpickled in the process that trains.

See :mod:`hpo_core.spec.sent_functions` for how they are named.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.security.private_files import check_folder, open_private, private_folder, write_private
from hpo_core.spec.sent_functions import (
    MOST_BYTES,
    Sent,
    digest_of,
    given,
    short_name,
)

FOLDER = "code"
"""In the study's folder."""
_PLACE = re.compile(r"(/.*)/code/(by_value(?:\.s[0-9a-f]{16})?\.d[0-9a-f]{64}:[A-Za-z_]\w*)")


def keep(name: str, study_folder: Path, studies: Path) -> None:
    """See that a study's folder has a function that was sent by value.

    Args:
        studies: folder of the studies' folders.

    Raises:
        SpecError: nobody has it, see :func:`find`.
        StorageError: the folder cannot be written, or is not this user's alone.
    """
    sent = find(name, study_folder, studies)
    folder = private_folder(study_folder / FOLDER, below=study_folder)
    write_private(folder / f"{digest_of(name)}.pkl", sent.content, durable=True)


def find(name: str, study_folder: Path, studies: Path) -> Sent:
    """A function that was sent by value: from this process, the study's folder, or another study of the same home.

    Raises:
        SpecError: nobody has it, or a file is not what its name says.
    """
    if (sent := given(name)) is not None:
        return sent
    digest = digest_of(name)
    others = sorted(studies.glob(f"*/{FOLDER}/{digest}.pkl")) if digest is not None else []
    for folder in [study_folder, *(file.parents[1] for file in others)]:
        with contextlib.suppress(FileNotFoundError):
            return Sent(name, read(name, folder))
    raise SpecError(
        f"{short_name(name)} was sent by value, and no study in {studies} keeps it ({FOLDER}/{digest}.pkl). Put the "
        "file back, call hpo.tune with the function itself, or put it into a module and name that: module:function."
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
