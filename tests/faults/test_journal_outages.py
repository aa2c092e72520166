"""The journal's database goes away for a while: a locked SQLite file, a PostgreSQL that crashes and comes back."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpo_core import Study
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.journal.sql import SqlJournal
from hpo_core.model.errors import JournalUnavailableError
from hpo_core.model.events import JobCompleted
from hpo_core.replay.audit import audit
from tests.conftest import fresh, make_spec
from tests.flows.conftest import LIMIT
from tests.postgresql import PostgreSQL

ROOT = Path(__file__).parents[2]


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


def spec(**changes: Any) -> dict[str, Any]:
    return {
        "study": "real",
        "objective": "tests.flows.objectives:slow",
        "pythonpath": [str(ROOT)],
        "metric": {"name": "loss"},
        "space": {"x": {"type": "float", "low": -1.0, "high": 1.0}},
        "search": {"method": "asha", "configs": 30, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
        "seed": 3,
        "cluster": {"kind": "local", "workers": 2},
        "tracking": {"mlflow": "off"},
    } | changes


class Controller:
    """A controller of its own process, on a journal that is named by a URL."""

    def __init__(self, folder: Path, url: str, **changes: Any) -> None:
        self.url, self.log = url, folder / "log"
        (folder / "study.json").write_text(json.dumps(spec(**changes)))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.controller", str(folder / "home"), str(folder / "study.json")],
                stdout=log, stderr=log, cwd=ROOT, start_new_session=True, env=os.environ | {"HPO_JOURNAL": url},
            )  # fmt: skip

    def entries(self) -> int:
        journal = SqlJournal(self.url)
        try:
            return {info.name: info.entries for info in journal.studies()}.get("real", 0)
        finally:
            journal.close()

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + LIMIT
        while self.entries() < count:
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def wait_for_words(self, words: str, times: int = 1) -> None:
        deadline = time.monotonic() + LIMIT
        while self.log.read_text().count(words) < times:
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.parametrize("down", [10.0, 30.0])
def test_a_study_survives_a_crash_of_postgresql(tmp_path: Path, down: float) -> None:
    server = PostgreSQL()
    server.start()
    gate = tmp_path / "gate"
    gate.write_text("20")  # the study does not end before the second crash
    held = {"objective": "tests.flows.objectives:held", "constants": {"gate": str(gate)}}
    controller = Controller(tmp_path, server.url, **held)
    try:
        for crash, seen in enumerate((12, 20), start=1):
            controller.wait_for(seen)
            server.stop("immediate")
            if crash == 2:
                gate.unlink()
            controller.wait_for_words("Tried again for 60 s", crash)
            time.sleep(down)
            assert controller.process.poll() is None, controller.log.read_text()[-3000:]
            server.start()
        assert controller.process.wait(LIMIT) == 0, controller.log.read_text()[-3000:]
        assert "answers again" in controller.log.read_text()
        entries = list(SqlJournal(server.url).entries("real"))
    finally:
        controller.end()
        server.remove()
    assert audit(entries).clean
    study = Study.from_entries(entries)
    study.check()
    assert study.status == "finished" and len(study.state.trials) == 30
    assert study.state.failed_attempts == 0, "an attempt was lost although it trained on"
    assert {entry.epoch for entry in entries[1:]} == {1}
    counted = Counter((e.trial, e.rung) for entry in entries for e in entry.events if isinstance(e, JobCompleted))
    assert set(counted.values()) == {1}, "a result was counted twice"


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGTERM, id="sigterm", marks=pytest.mark.slow)],
)
def test_an_interrupt_ends_the_wait_for_the_journal(tmp_path: Path, number: int) -> None:
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    controller = Controller(tmp_path, url)
    try:
        controller.wait_for(10)
        with Lock(tmp_path / "journal.db"):
            controller.wait_for_words("Tried again for 60 s")
            controller.process.send_signal(number)
            assert controller.process.wait(LIMIT) != 0  # once is enough
    finally:
        controller.end()
    study = Study.open("real", SqlJournal(url))
    study.check()
    assert study.status == "open"
    assert audit(study.journal.entries("real")).clean
