"""Journals in memory: for simulations, tests, and loops by hand that need no record."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from hpo_core.journal.protocol import MemoryMeasurements, Owner, StudyInfo, unknown_study
from hpo_core.model.errors import FencedError, JournalError, StudyBusyError, StudyExistsError
from hpo_core.model.events import Entry


class _Kept:
    __slots__ = ("count", "entries", "epoch", "owner")

    def __init__(self, first: Entry) -> None:
        self.entries = [first]
        self.count = 1
        self.epoch = first.epoch
        self.owner: Owner | None = None


class MemoryJournal:
    """Entries in lists, of this process and as long as it runs; its threads may write at the same time."""

    def __init__(self, place: str = "this journal", cure: str = "Check the name, or create it.") -> None:
        self._studies: dict[str, _Kept] = {}
        self._unknown = place, cure
        """Place and cure in the error about an unknown study."""
        self._lock = threading.RLock()  # what takes an entry may write the next
        self.measurements = MemoryMeasurements()

    def _kept(self, study: str) -> _Kept:
        try:
            return self._studies[study]
        except KeyError:
            raise unknown_study(study, list(self._studies), *self._unknown) from None

    def create(self, study: str, first: Entry) -> None:
        if self._studies.setdefault(study, kept := _Kept(first)) is not kept:
            raise StudyExistsError(f"Study {study!r} exists already. Open it, or choose another name.")

    def append(self, study: str, entry: Entry) -> None:
        kept = self._kept(study)
        with self._lock:
            if entry.seq != kept.count or entry.epoch != kept.epoch:
                raise FencedError(
                    f"Study {study!r}: entry {entry.seq} of epoch {entry.epoch} refused; the journal is at entry "
                    f"{kept.count}, epoch {kept.epoch}. Another controller took over; stop this one."
                )
            kept.count += 1
            self._take(kept, entry)

    def _take(self, kept: _Kept, entry: Entry) -> None:
        kept.entries.append(entry)

    def entries(self, study: str, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        return iter(self._kept(study).entries[start:stop])

    def info(self, study: str) -> StudyInfo:
        kept = self._kept(study)
        return StudyInfo(study, kept.entries[0].time, kept.count, epoch=kept.epoch, owner=kept.owner, silent=0.0)

    def studies(self) -> list[StudyInfo]:
        return [self.info(name) for name in sorted(dict(self._studies))]

    def claim(self, study: str, owner: Owner, *, force: bool = False) -> int:
        kept = self._kept(study)
        with self._lock:
            if kept.owner is not None and kept.owner != owner and not force:
                raise StudyBusyError(f"Study {study!r} is driven by {kept.owner.label()}. End that controller first.")
            kept.epoch += 1
            kept.owner = owner
            return kept.epoch

    def renew(self, study: str, epoch: int) -> None:
        kept = self._kept(study)
        if kept.epoch != epoch:
            raise FencedError(f"Study {study!r} was taken over (epoch {kept.epoch}, mine {epoch}); stop.")

    def release(self, study: str, epoch: int) -> None:
        kept = self._kept(study)
        if kept.epoch == epoch:
            kept.owner = None

    def close(self) -> None:
        """Do nothing: nothing is open."""


class UnkeptJournal(MemoryJournal):
    """Hands each entry on and keeps none but the first, so that a million jobs need no memory for their record.

    Args:
        take: called with each entry but the first of a study.
    """

    def __init__(self, take: Callable[[Entry], None]) -> None:
        super().__init__()
        self._on_entry = take

    def _take(self, kept: _Kept, entry: Entry) -> None:
        self._on_entry(entry)

    def entries(self, study: str, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        """None but the first can be had.

        Raises:
            JournalError: others are asked for.
        """
        count = self._kept(study).count if stop is None else stop
        if count > 1:
            raise JournalError(f"Study {study!r}: its entries were not kept. Use a MemoryJournal to read them again.")
        return super().entries(study, start, stop)
