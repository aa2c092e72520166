"""Pools of slots: in memory, SQLite and PostgreSQL; several controllers at once; absurd rows; a database that fails."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import Journal
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.journal.sql import open_journal
from hpo_core.model.errors import JournalError, JournalUnavailableError
from hpo_core.pool.division import Member, Wish
from hpo_core.pool.seat import LEASE_SECONDS, PoolSeat
from hpo_core.pool.store import MOST_TRIES, Decide, PoolRow, Pools, pools_of
from hpo_core.study import Study
from tests.conftest import make_spec
from tests.sharing.in_memory import MemoryPools, Wants, terms_for
from tests.waiting import eventually

Open = Callable[[], Journal]
SLOTS = 8
IN_A_DATABASE = pytest.mark.parametrize(
    "open_again", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)


def seat_of(pools: Pools, study: str, **terms: Any) -> PoolSeat:
    return PoolSeat(pools, terms_for(study, **terms), Wants(wanted=100))


def members(pools: Pools) -> dict[str, Member]:
    return {row.study: row.member for row in pools.all() if row.member is not None}


def held(pools: Pools) -> dict[str, int]:
    return {study: len(member.held) for study, member in members(pools).items()}


@IN_A_DATABASE
def test_another_process_sees_members_until_they_leave_and_wishes_stay(open_again: Open) -> None:
    pools = pools_of(open_again())
    assert pools.all() == []
    for name in ("a", "b"):
        seat_of(pools, name).exchange(0.0, range(SLOTS))
    again = pools_of(RetryingJournal(open_again()))
    assert held(again) == {"a": 8, "b": 0}
    again.say("p", "a", Wish(weight=3.0))
    again.say("p", "a", Wish(priority=2))
    again.say("p", "never-ran", Wish(weight=2.0))
    again.leave("p", "a", "another controller")
    assert members(pools).keys() == {"a", "b"}, "only who has the row gives it up"
    again.leave("p", "a", "a-1")
    assert members(pools).keys() == {"b"}
    rows = {row.study: row for row in pools.all()}
    assert rows["a"].wish == Wish(weight=3.0, priority=2)
    seat = seat_of(pools, "a", owner="a-2")
    seat.exchange(0.0, range(SLOTS))
    assert (seat.mine.weight, seat.mine.priority) == (3.0, 2)


@IN_A_DATABASE
def test_controllers_that_exchange_at_the_same_time_hold_no_slot_twice(open_again: Open) -> None:
    failures: list[str] = []
    found: dict[str, list[int]] = {}
    together = threading.Barrier(3)

    def control(name: str, weight: float) -> None:
        pools = pools_of(open_again())
        seat = seat_of(pools, name, weight=weight)
        change = pools.change

        def judged(pool: str, study: str, decide: Decide) -> None:
            def decide_and_judge(rows: Sequence[PoolRow]) -> list[PoolRow]:
                decided = list(decide(rows))
                now = {row.study: row.member.held for row in [*rows, *decided] if row.member is not None}
                names = [name for held in now.values() for name in held]
                if len(names) > SLOTS or len(set(names)) < len(names):
                    failures.append(f"{name}: {now}")
                failures.extend(f"{name} wrote the row of {row.study}" for row in decided if row.study != study)
                return decided

            change(pool, study, decide_and_judge)

        pools.change = judged  # type: ignore[method-assign]
        try:
            for moment in range(30):
                together.wait(600)
                busy = sorted(seat.open(float(moment))) if moment % 3 else []  # jobs end now and then
                seat.exchange(float(moment), range(SLOTS), busy)
                found.setdefault(name, []).append(len(seat.held))
        except BaseException as error:
            failures.append(repr(error))

    threads = [
        threading.Thread(target=control, args=(f"s{number}", weight)) for number, weight in enumerate((1.0, 1.0, 2.0))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert failures == []
    assert all(max(counts) > 0 for counts in found.values()) and len(found) == 3


def named(study: str) -> str:
    return json.dumps({"study": study, "demand": 8, "held": ["0", "1"]})


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("x", ""),
        ("x", "no JSON"),
        ("x", "[]"),
        ("x", '{"study": "x", "demand": -5}'),
        ("x", '{"study": "x", "demand": 99999999999999999999}'),
        ("x", '{"study": "x", "weight": 1e308, "demand": 8}'),
        ("x", '{"study": "x", "weight": "much"}'),
        ("x", '{"study": "x", "priority": 4000, "demand": 8}'),
        ("x", '{"study": "someone else", "demand": 8}'),
        ("x", '{"study": "x", "weight": NaN}'),
        ("x", "[" * 100_000),
        ("x", b"\xff\xfe"),
        ("x", 7),
        *((name, named(name)) for name in ("x\ny: finished", "\x1b[31mx", "x\n", "", "../x", "x" * 101)),
    ],
)
def test_a_row_that_is_damaged_absurd_or_of_an_impossible_name_is_nobodys(tmp_path: Path, name: str, body: Any) -> None:
    """Names of the others are shown in the terminal, in Prefect, and in messages of the journal."""
    journal = open_journal(tmp_path / "journal.db")
    pools = pools_of(journal)
    seat = seat_of(pools, "mine")
    seat.exchange(0.0, range(SLOTS))
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("INSERT INTO hpo_members VALUES ('p', ?, ?, ?)", (name, body, body))
    for moment in range(1, 10):
        seat.exchange(float(moment), range(SLOTS))
    assert len(seat.open(9.0)) == 8 and seat.others == []
    assert members(pools).keys() == {"mine"}


def test_a_row_that_claims_everything_and_is_not_kept_alive_holds_nothing_after_the_lease(tmp_path: Path) -> None:
    """However it was written, as by a later version: else it counts as alive again after a pause of ours."""
    journal = open_journal(tmp_path / "journal.db")
    pools = pools_of(journal)
    seat = seat_of(pools, "mine")
    seat.exchange(0.0, [])
    everything = [str(number) for number in range(4_096)]
    body = {"study": "x", "demand": 1_000_000, "priority": 100, "weight": 1000.0, "held": everything, "later": 1}
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("INSERT INTO hpo_members VALUES ('p', 'x', ?, '')", (json.dumps(body),))
    seat.exchange(1.0, range(SLOTS))
    assert len(seat.open(1.0)) == 0
    for moment in range(2, int(LEASE_SECONDS) + 7):
        seat.exchange(float(moment), range(SLOTS))
    assert len(seat.open(moment)) == 8
    assert members(pools).keys() == {"mine"}, "a later study need not wait for the lease again"


@IN_A_DATABASE
def test_a_row_that_somebody_replaced_once_is_taken_back_after_the_lease(
    open_again: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that nobody keeps alive is ignored, also where it is the study's own."""
    pools = pools_of(open_again())
    seat, other = seat_of(pools, "mine"), seat_of(pools, "other")
    for moment in range(5):
        for one in (seat, other):
            one.exchange(float(moment), range(SLOTS))
    assert (len(seat.open(4.0)), len(other.open(4.0))) == (4, 4)
    planted = msgspec.structs.replace(seat.mine, owner="somebody:\x1b[31m:1", beat=seat.mine.beat + 1)
    pools_of(open_again()).change("p", "mine", lambda rows: [PoolRow("p", "mine", planted)])
    allowed = {}
    for moment in range(5, 40):
        for one in (seat, other):
            one.exchange(float(moment), range(SLOTS))
        allowed[moment] = len(seat.open(float(moment)))
        assert len(seat.open(float(moment))) + len(other.open(float(moment))) <= SLOTS
    back = min(moment for moment, slots in allowed.items() if slots)
    assert not any(slots for moment, slots in allowed.items() if moment < back)
    assert LEASE_SECONDS < back - 5 <= LEASE_SECONDS + 2
    assert allowed[39] == 4
    assert members(pools)["mine"].owner == "mine-1"
    told = [record.message for record in caplog.records]
    assert ["has another owner" in text for text in told] == [True]
    assert "\x1b" not in caplog.text


@IN_A_DATABASE
def test_a_row_that_another_controller_keeps_alive_is_left_to_it(open_again: Open) -> None:
    pools = pools_of(open_again())
    mine, successor = seat_of(pools, "s"), seat_of(pools, "s", owner="s-2")
    mine.exchange(0.0, range(SLOTS))
    for moment in range(1, 60):
        successor.exchange(float(moment), range(SLOTS))
        mine.exchange(float(moment), range(SLOTS))
        if moment > 2:  # alone it looks every two seconds
            assert (len(mine.open(float(moment))), len(successor.open(float(moment)))) == (0, 8)
    for moment in range(60, 85):  # it was killed
        mine.exchange(float(moment), range(SLOTS))
    assert len(mine.open(84.0)) == 8


def test_a_study_alone_costs_at_most_one_statement_a_second(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "journal.db")
    seat = seat_of(pools_of(journal), "alone")
    seat.exchange(0.0, range(SLOTS))  # makes the table
    statements: list[str] = []
    sa.event.listen(journal._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    for tenth in range(1, 1200):
        seat.exchange(tenth / 10, range(SLOTS))
    assert 0 < len(statements) <= 120, len(statements)
    writes = [statement for statement in statements if statement.startswith("UPDATE")]
    assert len(writes) <= 120 / 5 + 1


class Failing(MemoryPools):
    """A database that does not answer for a while."""

    fails = False

    def change(self, pool: str, study: str, decide: Decide) -> None:
        if self.fails:
            raise JournalUnavailableError("no answer")
        super().change(pool, study, decide)


def test_while_the_database_does_not_answer_slots_are_held_for_the_lease(caplog: pytest.LogCaptureFixture) -> None:
    pools = Failing()
    seat = seat_of(pools, "s")
    seat.exchange(0.0, range(SLOTS))
    pools.fails = True
    for moment in range(1, 40):
        seat.exchange(float(moment), range(SLOTS))
        assert len(seat.open(float(moment))) == (8 if moment <= LEASE_SECONDS else 0)
    assert len(caplog.records) == 1 and "cannot be read or written" in caplog.text
    pools.fails = False
    seat.exchange(41.0, range(SLOTS))
    assert len(seat.open(41.0)) == 8


STOPS = """
import os, signal, sys
from hpo_core.journal.sql import open_journal
from hpo_core.pool.division import Member
from hpo_core.pool.store import PoolRow, pools_of

def decide(rows):
    os.kill(os.getpid(), signal.SIGSTOP)
    return [PoolRow("p", "stopped", Member(study="stopped", demand=len(rows)))]

pools_of(open_journal(sys.argv[1])).change("p", "stopped", decide)
"""


def test_a_controller_that_is_stopped_while_it_decides_holds_up_nobody(tmp_path: Path) -> None:
    """Its transaction was open then: all studies of the home waited until it went on, also those that share nothing."""
    journal = open_journal(tmp_path / "journal.db")
    journal.wait_in_python()
    pools = pools_of(journal)
    seat_of(pools, "mine").exchange(0.0, range(SLOTS))
    stopped = subprocess.Popen([sys.executable, "-c", STOPS, str(tmp_path / "journal.db")])
    try:
        eventually(lambda: Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(") ")[2][0] == "T")
        Study.create(make_spec(study="other"), journal)
        assert seat_of(pools, "too").exchange(0.0, range(SLOTS))
        assert members(pools).keys() == {"mine", "too"}
        stopped.send_signal(signal.SIGCONT)
        eventually(lambda: Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(") ")[2][0] == "T")
        stopped.send_signal(signal.SIGCONT)  # it decides again: others came meanwhile
        assert stopped.wait(600) == 0
        assert members(pools)["stopped"].demand == 2
    finally:
        stopped.kill()


def test_a_journal_in_memory_has_no_pools() -> None:
    with pytest.raises(JournalError, match="has no pools"):
        pools_of(MemoryJournal())


def test_a_look_that_others_overtake_each_time_is_made_again_later(tmp_path: Path) -> None:
    pools, tries = pools_of(open_journal(tmp_path / "journal.db")), 0
    other = seat_of(pools_of(open_journal(tmp_path / "journal.db")), "other")

    def decide(rows: Sequence[PoolRow]) -> list[PoolRow]:
        nonlocal tries
        tries += 1
        other.exchange(10.0 * tries, range(SLOTS + tries))  # it holds another number each time
        return [PoolRow("p", "s", Member(study="s"))]

    with pytest.raises(JournalUnavailableError, match="It looks again"):
        pools.change("p", "s", decide)
    assert tries == MOST_TRIES and members(pools).keys() == {"other"}


def test_a_sign_of_life_is_written_however_the_one_before_was_written(tmp_path: Path) -> None:
    """`"seen": 8` and `"seen":8` are the same: a comparison of texts made anew refused it for ever."""
    pools = pools_of(open_journal(tmp_path / "journal.db"))
    seat = seat_of(pools, "mine")
    seat.exchange(0.0, range(SLOTS))
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("UPDATE hpo_members SET member = replace(member, '\"seen\":8', '\"seen\": 8')")
        assert database.execute("SELECT member FROM hpo_members WHERE member LIKE '%\"seen\": 8%'").fetchall()
    for moment in range(1, 30):
        seat.exchange(float(moment), range(SLOTS))
    assert members(pools)["mine"].beat > 3 and len(seat.open(29.0)) == 8
