"""The journal's database goes away for a while: a locked SQLite file, a PostgreSQL that crashes and comes back."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from hpo_core import Study
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.journal.sql import SqlJournal
from hpo_core.model.errors import JournalUnavailableError
from hpo_core.replay.audit import audit
from tests.conftest import fresh, make_spec
from tests.faults.test_real_study import Real
from tests.flows.conftest import LIMIT
from tests.postgresql import PostgreSQL


class Lock:
    """Another program that holds a SQLite journal for itself."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, timeout=30, check_same_thread=False, isolation_level=None)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._connection.execute("ROLLBACK")


def test_calls_wait_for_a_locked_sqlite_file(tmp_path: Path) -> None:
    record = SqlJournal(f"sqlite:///{tmp_path / 'journal.db'}")
    study = fresh(make_spec(), record)
    record.wait_in_python()
    study.journal = RetryingJournal(record, 60)
    lock = Lock(tmp_path / "journal.db")
    lock.__enter__()
    timer = threading.Timer(1.0, lock.__exit__)
    timer.start()
    assert len(study.set_capacity(2)) == 2
    timer.join()
    assert audit(record.entries("world")).clean and record.info("world").entries == study.seq
    with Lock(tmp_path / "journal.db"), pytest.raises(JournalUnavailableError, match="locked"):
        study.journal.seconds = 0.5
        study.stop("now")


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.parametrize("down", [10.0, 30.0])
def test_a_study_survives_a_crash_of_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, down: float) -> None:
    server = PostgreSQL()
    server.start()
    monkeypatch.setenv("HPO_JOURNAL", server.url)
    gate = tmp_path / "gate"
    gate.write_text("20")  # the study does not end before the second crash
    real = Real(tmp_path, "held", constants={"gate": str(gate)})
    process = real.start()
    try:
        for crash, seen in enumerate((12, 20), start=1):
            real.wait_for_entries(seen, process)
            server.stop("immediate")
            if crash == 2:
                gate.unlink()
            real.until(lambda crash=crash: real.log.read_text().count("Tried again for 60 s") == crash, process)
            time.sleep(down)
            assert process.poll() is None, real.log.read_text()[-3000:]
            server.start()
        assert process.wait(LIMIT) == 0, real.log.read_text()[-3000:]
        assert "answers again" in real.log.read_text()
        study = real.assert_whole()
        entries = list(real.home.open_journal().entries("real"))
    finally:
        process.kill()
        server.remove()
    assert study.state.failed_attempts == 0, "an attempt was lost although it trained on"
    assert {entry.epoch for entry in entries[1:]} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_wait_for_the_journal(tmp_path: Path, number: int) -> None:
    real = Real(tmp_path)
    process = real.start()
    try:
        real.wait_for_entries(10, process)
        with Lock(real.home.folder / "journal.db"):
            real.until(lambda: "Tried again for 60 s" in real.log.read_text(), process)
            process.send_signal(number)
            assert process.wait(LIMIT) != 0  # once is enough
    finally:
        process.kill()
    study = Study.open("real", real.home.open_journal())
    study.check()
    assert study.status == "open"
    assert audit(study.journal.entries("real")).clean
