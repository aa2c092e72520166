"""Errors a user can meet. Each says what, where, the value, the rule and the cure."""

from __future__ import annotations


class HpoError(Exception):
    """Base of every error this package raises on purpose.

    ``exit_code`` is what the command line ends with when the error reaches it.
    """

    exit_code = 1


class SpecError(HpoError):
    """A study's description is wrong: unknown key, value out of range, objective not found."""

    exit_code = 2


class StudyExistsError(HpoError):
    """A study of that name is in the journal already."""

    exit_code = 3


class StudyNotFoundError(HpoError):
    """No study of that name is in the journal."""

    exit_code = 4


class StudyBusyError(HpoError):
    """Another controller, still alive, drives the study."""

    exit_code = 5


class FencedError(HpoError):
    """Another controller took the study over; this one must stop and write nothing more."""

    exit_code = 5


class JournalError(HpoError):
    """The journal could not be read or written (full disk, no permission, damaged entry)."""

    exit_code = 6


class JournalUnavailableError(JournalError):
    """The journal's database did not answer, or could not just now; the same call may succeed later."""


class CheckpointError(HpoError):
    """A checkpoint is missing, truncated, corrupt, or holds what cannot be stored safely."""


class ObjectiveError(HpoError):
    """The training function broke its contract (no metric, unknown call order, early end)."""


class StorageError(HpoError):
    """A folder the study needs cannot be written (full disk, no permission)."""

    exit_code = 6
