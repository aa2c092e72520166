"""What every journal promises; run against memory, SQLite and PostgreSQL."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from hpo_core import Study
from hpo_core.journal.protocol import Journal, Owner, StudyInfo
from hpo_core.journal.retrying import PatientJournal
from hpo_core.journal.sql import current_owner
from hpo_core.model.errors import (
    FencedError,
    HpoError,
    JournalUnavailableError,
    StudyBusyError,
    StudyExistsError,
    StudyNotFoundError,
)
from hpo_core.model.events import Entry
from hpo_core.replay.audit import audit
from tests.conftest import World, fresh, make_spec
from tests.laws.test_laws import snapshot

Open = Callable[[], Journal]
T = TypeVar("T")


def test_what_was_appended_is_read_back(open_again: Open) -> None:
    world = World(2, failures=0.1, nans=0.1)
    study = fresh(make_spec(), open_again(), world)
    world.play(study)
    journal = open_again()
    entries = list(journal.entries("world"))
    assert [entry.seq for entry in entries] == list(range(study.seq))
    assert snapshot(Study.open("world", journal)) == snapshot(study)
    assert [e.seq for e in journal.entries("world", 3, 6)] == [3, 4, 5]
    assert audit(entries).clean


def test_studies_are_apart(open_again: Open) -> None:
    one = fresh(make_spec(), open_again())
    two = fresh(make_spec(study="other"), open_again())
    one.set_capacity(1)
    assert [(info.name, info.entries) for info in open_again().studies()] == [("other", 1), ("world", 2)]
    assert two.seq == 1


def test_names_are_taken_once(open_again: Open) -> None:
    fresh(make_spec(), open_again())
    with pytest.raises(StudyExistsError, match="'world' exists already"):
        fresh(make_spec(), open_again())


def test_unknown_study_is_said_with_known_ones(open_again: Open) -> None:
    fresh(make_spec(), open_again())
    with pytest.raises(StudyNotFoundError, match="'nowhere' is not in .*world"):
        list(open_again().entries("nowhere"))


def test_of_two_writers_one_is_refused(open_again: Open) -> None:
    first = fresh(make_spec(), open_again())
    second = Study.open("world", open_again())
    first.set_capacity(1)
    with pytest.raises(FencedError, match="entry 1 of epoch 0 .*refused"):
        second.set_capacity(1)
    assert open_again().info("world").entries == 2


def test_takeover_fences_the_old_controller(open_again: Open) -> None:
    journal = open_again()
    old = fresh(make_spec(), journal)
    me = current_owner()
    old.epoch = journal.claim("world", me, time.time())
    jobs = old.set_capacity(2)
    other = Owner("elsewhere", 1, 0.0)
    taker = open_again()
    with pytest.raises(StudyBusyError, match=str(me.pid)):
        taker.claim("world", other, time.time())
    new = Study.open("world", taker)
    new.epoch = taker.claim("world", other, time.time(), force=True)
    with pytest.raises(FencedError):
        journal.renew("world", old.epoch, time.time())
    with pytest.raises(FencedError):
        old.tell(jobs[0], {"loss": 0.1})
    new.recover("elsewhere")
    assert new.state.completed_jobs == 0 and len(new.state.waiting) == 2
    taker.release("world", new.epoch)
    assert open_again().info("world").owner is None


def test_race_of_many_writers_loses_and_doubles_nothing(open_again: Open) -> None:
    fresh(make_spec(search={"method": "random", "configs": 200}), open_again())
    refused = []

    def write() -> None:
        for _ in range(10):
            try:
                Study.open("world", open_again()).ask()
            except HpoError as error:
                refused.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    study = Study.open("world", open_again())
    assert all(isinstance(error, FencedError) for error in refused)
    assert len(study.state.trials) == 40 - len(refused) == study.seq - 1
    assert audit(open_again().entries("world")).clean


class Blips:
    """A journal behind a bad line: a call fails before the journal heard of it, or after it was carried out."""

    def __init__(self, journal: Journal, seed: int) -> None:
        self.journal = journal
        self.random = random.Random(seed)
        self.failures = 0

    def _pass(self, call: Callable[[], T]) -> T:
        fate = self.random.random()
        if fate < 0.3:
            self.failures += 1
            raise JournalUnavailableError("the line broke before the question arrived")
        answer = call()
        if fate > 0.7:
            self.failures += 1
            raise JournalUnavailableError("the line broke before the answer arrived")
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
def test_a_bad_line_loses_and_doubles_nothing(open_again: Open, seed: int) -> None:
    calm = fresh(make_spec(), None, World(seed))
    World(seed).play(calm)
    line = Blips(open_again(), seed)
    journal = PatientJournal(line, 60)
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
def test_an_append_made_again_is_fenced_by_another_controllers_entry(open_again: Open) -> None:
    record = open_again()
    old = fresh(make_spec(), record)
    old.epoch = record.claim("world", current_owner(), time.time())

    class TakenOver(Blips):
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
    old.journal = PatientJournal(line, 60)
    with pytest.raises(FencedError):
        old.set_capacity(2)
    assert line.taken
    assert [entry.epoch for entry in record.entries("world")] == [0, 2]


def test_a_fence_is_not_waited_for_and_patience_ends(open_again: Open) -> None:
    record = open_again()
    study = fresh(make_spec(), record)
    Study.open("world", record).ask()
    study.journal = PatientJournal(record, 3600)
    with pytest.raises(FencedError):
        study.ask()

    class Gone(Blips):
        def append(self, study: str, entry: Entry) -> None:
            self.failures += 1
            raise JournalUnavailableError("gone")

    line = Gone(record, 0)
    late = Study.open("world", record)
    late.journal = PatientJournal(line, 0.3)
    with pytest.raises(JournalUnavailableError, match="gone"):
        late.ask()
    assert line.failures > 1
    with pytest.raises(HpoError, match="could not record its last decision"):
        late.ask()
