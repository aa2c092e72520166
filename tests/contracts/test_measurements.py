from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from hpo_core.journal import protocol, sql_measurements
from hpo_core.journal.protocol import Journal, QuietMeasurements
from hpo_core.journal.sql import open_journal
from hpo_core.model.devices.measurement import Measurement

Open = Callable[[], Journal]


def measurement(at: float, width: int = 64, **changes: Any) -> Measurement:
    given: dict[str, Any] = {
        "objective": "m:f",
        "code": "c",
        "architecture": "A100",
        "params": {"width": width},
        "memory": 10,
        "device_memory": 20,
        "compute": 0.25,
        "cores": 1.5,
        "startup_seconds": 2.0,
        "unit_seconds": 3.0,
        "study": "s",
        "measured_at": at,
    }
    return Measurement(**given | changes)


def test_another_process_reads_what_was_added_oldest_first(open_again: Open) -> None:
    kept = open_again().measurements
    assert kept.read("m:f", "c") == kept.all() == []
    told = [measurement(at) for at in (3.0, 1.0, 2.0)]
    others = [measurement(1.5, objective="m:g"), measurement(1.6, code="edited")]
    assert kept.add([*told, *others]) == 5
    again = open_again().measurements
    assert again.read("m:f", "c") == sorted(told, key=lambda one: one.measured_at)
    assert [one.measured_at for one in again.all()] == [1.0, 1.5, 1.6, 2.0, 3.0]
    assert again.add([told[0], measurement(4.0)]) == 1, "what is there already stays one"
    assert again.forget([told[1], measurement(99.0)]) == 1
    assert [one.measured_at for one in kept.read("m:f", "c")] == [2.0, 3.0, 4.0]


def test_the_newest_of_each_key_and_of_each_objective_are_kept(
    open_again: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (protocol, sql_measurements):
        monkeypatch.setattr(module, "PER_KEY", 3)
        monkeypatch.setattr(module, "PER_OBJECTIVE", 5)
    kept = open_again().measurements
    kept.add([measurement(0.0, objective="m:g")])
    for at in (5.0, 1.0, 4.0, 2.0, 3.0):
        kept.add([measurement(at)])
    assert [one.measured_at for one in kept.read("m:f", "c")] == [3.0, 4.0, 5.0]
    kept.add([measurement(10.0 + at, width=32, architecture="H100") for at in range(6)])
    assert [one.measured_at for one in kept.read("m:f", "c")] == [4.0, 5.0, 13.0, 14.0, 15.0]
    assert len(kept.read("m:g", "c")) == 1


def test_writers_at_the_same_time_lose_nothing_of_each_other(open_again: Open) -> None:
    journals = [open_again() for _ in range(4)]
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for at in range(10):
                own = measurement(float(at), width=number, study=f"s{number}")
                journals[number].measurements.add([own, measurement(float(at), width=99, study="shared")])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert failures == []
    found = open_again().measurements.read("m:f", "c")
    assert sorted((one.params["width"], one.measured_at) for one in found) == sorted(
        (width, float(at)) for width in (0, 1, 2, 3, 99) for at in range(10)
    )


def test_a_damaged_row_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = open_journal(tmp_path / "journal.db")
    journal.measurements.add([measurement(1.0), measurement(2.0), measurement(3.0)])
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("UPDATE hpo_measurements SET body = '{\"memory\": -1}' WHERE measured_at = 1.0")
        database.execute("UPDATE hpo_measurements SET body = x'ff00' WHERE measured_at = 2.0")
    database.close()
    assert [one.measured_at for one in journal.measurements.all()] == [3.0]
    assert "2 measurements in the history are damaged" in caplog.text
    journal.close()


def test_a_study_goes_on_without_a_database_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(tmp_path / "journal.db")
    quiet = QuietMeasurements(journal.measurements)
    quiet.add([measurement(1.0)])

    def fails(*_: object) -> None:
        raise sa.exc.OperationalError("INSERT", {}, sqlite3.OperationalError("attempt to write a readonly database"))

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "hpo.history"):
        patched.setattr(sql_measurements, "_insert", fails)
        quiet.add([measurement(2.0)])
        quiet.add([measurement(3.0)])
    assert caplog.text.count("the study goes on without") == 1
    assert [one.measured_at for one in quiet.read("m:f", "c")] == [1.0]
    quiet.add([])
    assert [one.measured_at for one in quiet.read("m:f", "c")] == [1.0, 2.0, 3.0], "written later after all"
    journal.close()
