"""Every journal: the contract, and calls that are retried over an unreliable connection."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from hpo_core import Study
from hpo_core.journal.protocol import Journal, Owner, StudyInfo, started
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.journal.sql import LEASE_SECONDS, SqlJournal, current_owner, is_alive, open_journal
from hpo_core.model.errors import FencedError, HpoError, JournalError, JournalUnavailableError, StudyBusyError
from hpo_core.model.events import Entry
from hpo_core.replay.audit import audit
from tests.conftest import World, fresh, make_spec
from tests.contract_suites.fake_training import snapshot
from tests.contract_suites.journal_contract import JournalContract

Open = Callable[[], Journal]
T = TypeVar("T")


class TestJournals(JournalContract):
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

    def claim(self, study: str, owner: Owner, *, force: bool = False) -> int:
        return self._pass(lambda: self.journal.claim(study, owner, force=force))

    def renew(self, study: str, epoch: int) -> None:
        self._pass(lambda: self.journal.renew(study, epoch))

    def release(self, study: str, epoch: int) -> None:
        self._pass(lambda: self.journal.release(study, epoch))

    def close(self) -> None:
        self.journal.close()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo_core.journal.retrying._FIRST_PAUSE", 0.0)
    monkeypatch.setattr("hpo_core.journal.retrying._LONGEST_PAUSE", 0.0)


@pytest.mark.usefixtures("no_pauses")
def test_retries_over_an_unreliable_connection_lose_and_duplicate_nothing(open_again: Open, seed: int = 0) -> None:
    calm = fresh(make_spec(), None, World(seed))
    World(seed).play(calm)
    line = UnreliableJournal(open_again(), seed)
    journal = RetryingJournal(line, 60)
    world = World(seed)
    study = Study.create(make_spec(), journal, clock=calm._clock)
    study.epoch = journal.claim("world", current_owner())
    world.play(study)
    journal.renew("world", study.epoch)
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
    old.epoch = record.claim("world", current_owner())

    class TakenOver(UnreliableJournal):
        """While this one waits, another controller claims the study and writes."""

        taken = False

        def append(self, study: str, entry: Entry) -> None:
            if not self.taken:
                self.taken = True
                new = Study.open(study, record)
                new.epoch = record.claim(study, Owner("elsewhere", 1, 0.0), force=True)
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


@pytest.mark.postgresql
@pytest.mark.parametrize("ahead", [-600.0, 600.0])
def test_a_clock_that_differs_neither_steals_nor_keeps_a_lease(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """The database's clock decides: that of the machine which asks may be ten minutes wrong."""
    journal = SqlJournal(postgresql_url)
    name = "ahead" if ahead > 0 else "behind"
    fresh(make_spec(study=name), journal)
    epoch = journal.claim(name, Owner("elsewhere", 1, 0.0))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    with pytest.raises(StudyBusyError, match="elsewhere"):
        journal.claim(name, current_owner())
    journal.renew(name, epoch)
    monkeypatch.undo()
    assert -1 < journal.info(name).silent < LEASE_SECONDS
    with journal.database()[0].begin() as connection:
        connection.exec_driver_sql(f"UPDATE hpo_studies SET renewed = renewed - {LEASE_SECONDS + 1}")
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    assert journal.claim(name, current_owner()) == epoch + 1
    journal.close()


def test_a_clock_that_is_set_while_a_controller_lives_does_not_free_its_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a computer that sets its clock by NTP after its start: the kernel then tells another time of its boot."""
    journal = SqlJournal(f"sqlite:///{tmp_path / 'journal.db'}")
    fresh(make_spec(), journal)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        alive = Owner(current_owner().host, process.pid, started(process.pid))
        journal.claim("world", alive)
        real = psutil.boot_time()
        for place in (psutil, psutil._psplatform):
            monkeypatch.setattr(place, "boot_time", lambda: real + 120.0)
        assert is_alive(journal.info("world"))
        with pytest.raises(StudyBusyError, match=str(process.pid)):
            journal.claim("world", current_owner())
        monkeypatch.undo()
        process.communicate(b"\n")
    assert not is_alive(journal.info("world"))
    journal.close()


def test_a_study_that_is_restored_slowly_holds_up_nobody(tmp_path: Path) -> None:
    """Its entries may come from far away; while they were read a transaction was open."""
    source, journal = open_journal(tmp_path / "source.db"), open_journal(tmp_path / "journal.db")
    Study.create(make_spec(study="slow"), source)
    meanwhile = open_journal(tmp_path / "journal.db")
    meanwhile.wait_in_python()

    def entries() -> Iterator[Entry]:
        yield from source.entries("slow")
        Study.create(make_spec(study="other"), meanwhile)

    journal.restore("slow", entries())
    assert {info.name: info.entries for info in journal.studies()} == {"other": 1, "slow": 1}
