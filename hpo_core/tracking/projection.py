"""The protocol of a projection, a one-way copy of a study.

It is one way (nothing it holds is ever read back into a study), rebuildable (from the entries alone),
written by one process at a time, and never needed for a study to go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
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


class FollowedProjection(Projection, Protocol):
    """A projection that a follower, or ``hpo project``, keeps up with a journal."""

    study_name: str
    study_folder: Path
    tracking_uri: str

    @property
    def tracker(self) -> str:
        """What it copies to, as people call it."""
        ...

    @property
    def created(self) -> float | None:
        """Time of entry 0; None before it was taken in."""
        ...

    @property
    def written_seq(self) -> int:
        """The last entry the other side surely holds (-1: none)."""
        ...

    @property
    def deleted(self) -> bool:
        """Whether somebody deleted the copy, so that nothing was written."""
        ...

    @property
    def url(self) -> str | None:
        """Where to look, once there is something: a page, or the command that serves one."""
        ...

    def project(self, entries: Iterable[Entry], *, rebuild: bool = False, length: int | None = None) -> int:
        """As above; ``length`` is that of the whole journal, where ``entries`` go up to its end.

        Raises:
            DivergedError: what was copied has to be made anew.
        """
        ...

    def supersede(self) -> None:
        """Take what was copied out of sight and begin again at entry 0."""
        ...


def chained(digest: bytes, entry: Entry) -> bytes:
    """The digest of a journal up to this entry, from that of the entries before.

    Of what every version writes alike, so that an upgrade changes no digest.
    """
    facts = [entry.seq, repr(entry.time), entry.epoch, *(type(event).__name__ for event in entry.events)]
    return hashlib.sha256(digest + repr(facts).encode()).digest()
