"""What every journal promises; run against memory, SQLite and PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from hpo_core import Study
from hpo_core.errors import FencedError, HpoError, StudyBusyError, StudyExistsError, StudyNotFoundError
from hpo_core.journal.audit import audit
from hpo_core.journal.base import Journal, Owner
from hpo_core.journal.sql import current_owner
from tests.conftest import World, fresh, make_spec
from tests.laws.test_laws import snapshot

Open = Callable[[], Journal]


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
