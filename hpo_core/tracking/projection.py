"""The protocol of a projection, a one-way copy of a study.

It is one way (nothing it holds is ever read back into a study), rebuildable (from the entries alone),
written by one process at a time, and never needed for a study to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hpo_core.model.errors import HpoError
from hpo_core.model.events import Entry


class ProjectionBusyError(HpoError):
    """Another process, still alive, projects the study to the same place."""

    exit_code = 5


class DivergedError(HpoError):
    """What was projected is not what the journal holds: an older journal was put back."""

    exit_code = 6


class Projection(Protocol):
    """A copy of one study elsewhere.

    A process feeds it the journal once from entry 0, then what is new::

        projection.project(journal.entries(name))
        while driven:
            projection.project(journal.entries(name, projection.next_seq))
        projection.finish()

    Any call may raise whatever the other side raises; calling it again later loses and doubles nothing.
    """

    @property
    def next_seq(self) -> int:
        """The first entry this projection has not taken in yet."""
        ...

    def project(self, entries: Iterable[Entry], *, rebuild: bool = False) -> int:
        """Take in entries in order and copy what is new; returns how many were not projected before.

        Entries before :attr:`next_seq` are skipped. ``rebuild`` begins again at entry 0.
        """
        ...

    def finish(self) -> None:
        """Nobody drives the study any more: write last statuses and everything that is written once."""
        ...

    def close(self) -> None:
        """Let go, so that another process may project."""
        ...
