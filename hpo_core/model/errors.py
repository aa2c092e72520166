"""Errors that users can meet. Each message names what, where, the value, the rule and the cure."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb, format_list
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")
log = logging.getLogger("hpo.errors")
_OURS = tuple(str(Path(__file__).parents[2] / name) for name in ("hpo_core", "flows"))


def _is_library(file: str) -> bool:
    return file.startswith(_OURS) or "site-packages" in file


class HpoError(Exception):
    """Base class of all errors that this package raises on purpose.

    ``exit_code`` is the exit code of the command line when the error reaches it.
    """

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        # Lines that a notebook shows: where the user's code called, and the message; none of this package's frames.
        called = [one for one in extract_tb(self.__traceback__) if not _is_library(one.filename)]
        message = f"{type(self).__name__}: {self}"
        return [*"".join(format_list(called)).splitlines(), message, *getattr(self, "__notes__", ())]


class SpecError(HpoError):
    """A study's description is invalid: unknown key, value out of range, objective not found."""

    exit_code = 2


class StudyExistsError(HpoError):
    """The journal already has a study of that name."""

    exit_code = 3


class StudyNotFoundError(HpoError):
    """The journal has no study of that name."""

    exit_code = 4


class StudyBusyError(HpoError):
    """Another controller that is still alive runs the study."""

    exit_code = 5


class FencedError(HpoError):
    """Another controller has taken over the study; this one must stop and write nothing more."""

    exit_code = 5


class JournalError(HpoError):
    """The journal cannot be read or written (full disk, no permission, damaged entry)."""

    exit_code = 6


class JournalUnavailableError(JournalError):
    """The journal's database is unavailable at the moment; the same call may succeed later."""


class CheckpointError(HpoError):
    """A checkpoint is missing, truncated or corrupt, or contains a value that cannot be stored safely."""


class ObjectiveError(HpoError):
    """The training function raised, or broke its contract (missing metric, wrong order of calls, early end)."""


class StorageError(HpoError):
    """A folder that the study needs cannot be read or written (full disk, no permission)."""

    exit_code = 6


def without_own_frames(call: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """Decorate a public function: its errors of this package show the caller's frames only.

    Each message says what is wrong and where; the frames and causes below it are logged as ``hpo.errors``, for DEBUG.
    """

    @functools.wraps(call)
    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
        try:
            return call(*args, **kwargs)
        except HpoError as error:
            log.debug("%s was raised from", type(error).__name__, exc_info=error)
            raise error.with_traceback(None) from None

    return called
