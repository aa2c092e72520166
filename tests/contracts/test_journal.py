"""Every journal: the contract, and calls that are retried over an unreliable connection."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from hpo_core import Study
from hpo_core.journal.protocol import Journal, Owner, StudyInfo
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.journal.sql import current_owner, open_journal
from hpo_core.model.errors import FencedError, HpoError, JournalError, JournalUnavailableError
from hpo_core.model.events import Entry
from hpo_core.replay.audit import audit
from hpo_core.testing.fake_training import snapshot
from hpo_core.testing.journal_contract import JournalContract
from tests.conftest import World, fresh, make_spec

Open = Callable[[], Journal]
T = TypeVar("T")


class TestJournals(JournalContract):
    """The contract for memory, SQLite and PostgreSQL."""

    @pytest.fixture
    def open_journal(self, open_again: Open) -> Open:
        return open_again


class UnreliableJournal:
    """A journal over an unreliable connection: a call fails before or after it was carried out."""

    def __init__(self, journal: Journal, seed: int) -> None:
        self.journal = journal
        self.random = random.Random(seed)
        self.failures = 0

    def _pass(self, call: Callable[[], T]) -> T:
        fate = self.random.random()
        if fate < 0.3:
            self.failures += 1
            raise JournalUnavailableError("the connection broke before the call arrived")
        answer = call()
        if fate > 0.7:
            self.failures += 1
            raise JournalUnavailableError("the connection broke before the answer arrived")
        return answer

    def create(self, study: str, first: Entry) -> None:
        self._pass(lambda: self.journal.create(study, first))

    def append(self, study: str, entry: Entry) -> None:
        self._pass(lambda: self.journal.append(study, entry))

    def entries(self, study: str, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        for entry in self.journal.entries(study, start, stop):
            yield self._pass(lambda kept=entry: kept)  # type: ignore[misc]

    def info(self, study: str) -> StudyInfo:
        return self._pass(lambda: self.journal.info(study))

    def studies(self) -> list[StudyInfo]:
        return self._pass(self.journal.studies)

    def claim(self, study: str, owner: Owner, now: float, *, force: bool = False) -> int:
        return self._pass(lambda: self.journal.claim(study, owner, now, force=force))

    def renew(self, study: str, epoch: int, now: float) -> None:
        self._pass(lambda: self.journal.renew(study, epoch, now))

    def release(self, study: str, epoch: int) -> None:
        self._pass(lambda: self.journal.release(study, epoch))

    def close(self) -> None:
        self.journal.close()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo_core.journal.retrying._FIRST_PAUSE", 0.0)
    monkeypatch.setattr("hpo_core.journal.retrying._LONGEST_PAUSE", 0.0)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("seed", range(3))
def test_retries_over_an_unreliable_connection_lose_and_duplicate_nothing(open_again: Open, seed: int) -> None:
    calm = fresh(make_spec(), None, World(seed))
    World(seed).play(calm)
    line = UnreliableJournal(open_again(), seed)
    journal = RetryingJournal(line, 60)
    world = World(seed)
    study = Study.create(make_spec(), journal, clock=calm._clock)
    study.epoch = journal.claim("world", current_owner(), time.time())
    world.play(study)
    journal.renew("world", study.epoch, time.time())
    assert line.failures > 50
    entries = list(journal.entries("world"))
    assert [entry.seq for entry in entries] == list(range(study.seq)) == list(range(calm.seq))
    assert audit(entries).clean
    assert snapshot(Study.open("world", open_again())) == snapshot(study) == snapshot(calm)
    assert [info.name for info in journal.studies()] == ["world"]


@pytest.mark.usefixtures("no_pauses")
def test_a_retried_append_is_fenced_by_another_controllers_entry(open_again: Open) -> None:
    record = open_again()
    old = fresh(make_spec(), record)
    old.epoch = record.claim("world", current_owner(), time.time())

    class TakenOver(UnreliableJournal):
        """While this one waits, another controller claims the study and writes."""

        taken = False

        def append(self, study: str, entry: Entry) -> None:
            if not self.taken:
                self.taken = True
                new = Study.open(study, record)
                new.epoch = record.claim(study, Owner("elsewhere", 1, 0.0), time.time(), force=True)
                new.recover("elsewhere")
                raise JournalUnavailableError("gone")
            record.append(study, entry)

    line = TakenOver(record, 0)
    old.journal = RetryingJournal(line, 60)
    with pytest.raises(FencedError):
        old.set_capacity(2)
    assert line.taken
    assert [entry.epoch for entry in record.entries("world")] == [0, 2]


def test_a_url_whose_driver_is_not_installed_is_told_which_one_to_write() -> None:
    with pytest.raises(JournalError, match=r"needs the driver pg8000, .* that of postgresql\+psycopg://"):
        open_journal("postgresql+pg8000://localhost/studies")


def test_a_fenced_call_is_not_retried_and_retries_end(open_again: Open) -> None:
    record = open_again()
    study = fresh(make_spec(), record)
    Study.open("world", record).ask()
    study.journal = RetryingJournal(record, 3600)
    with pytest.raises(FencedError):
        study.ask()

    class Gone(UnreliableJournal):
        def append(self, study: str, entry: Entry) -> None:
            self.failures += 1
            raise JournalUnavailableError("gone")

    line = Gone(record, 0)
    late = Study.open("world", record)
    late.journal = RetryingJournal(line, 0.3)
    with pytest.raises(JournalUnavailableError, match="gone"):
        late.ask()
    assert line.failures > 1
    with pytest.raises(HpoError, match="could not record its last decision"):
        late.ask()
