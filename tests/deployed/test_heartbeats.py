"""Who is called dead: only a run whose file is not touched while somebody looks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import uuid4

from hpo_flows.deployed.flow_run_heartbeats import (
    BEAT_SECONDS,
    GRACE_SECONDS,
    LIMIT_SECONDS,
    LONGEST_LOOK,
    HeartbeatMonitor,
    beat,
    forget,
    heartbeat_file,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def home(folder: Path) -> Path:
    (folder / "heartbeats").mkdir()
    return folder


def looks(monitor: HeartbeatMonitor, clock: Clock, seconds: float) -> list[object]:
    found: list[object] = []
    for _ in range(int(seconds / BEAT_SECONDS)):
        clock.now += BEAT_SECONDS
        found += monitor.silent_runs()
    return found


def test_a_run_without_heartbeats_is_found_after_the_limit_and_not_before(tmp_path: Path) -> None:
    clock, run = Clock(), uuid4()
    monitor = HeartbeatMonitor(home(tmp_path), clock)
    beat(tmp_path, run)
    assert looks(monitor, clock, LIMIT_SECONDS) == []
    assert looks(monitor, clock, BEAT_SECONDS) == [run]
    assert looks(monitor, clock, LIMIT_SECONDS - BEAT_SECONDS) == [], "once, and again after another limit"
    assert looks(monitor, clock, BEAT_SECONDS) == [run]
    forget(tmp_path, run)
    assert looks(monitor, clock, 2 * LIMIT_SECONDS) == []


def test_a_run_with_heartbeats_is_never_found_whatever_its_clock_says(tmp_path: Path) -> None:
    clock, run = Clock(), uuid4()
    monitor = HeartbeatMonitor(home(tmp_path), clock)
    for hour in range(100):  # another machine's clock, which goes backwards and is years behind
        beat(tmp_path, run)
        os.utime(heartbeat_file(tmp_path, run), (10_000 - hour, 10_000 - hour))
        assert looks(monitor, clock, LIMIT_SECONDS - BEAT_SECONDS) == []


def test_a_monitor_that_did_not_look_counts_anew(tmp_path: Path) -> None:
    """A machine that slept, a worker that was stopped: its neighbours may have been stopped as well."""
    clock, run = Clock(), uuid4()
    monitor = HeartbeatMonitor(home(tmp_path), clock)
    beat(tmp_path, run)
    assert looks(monitor, clock, LIMIT_SECONDS - BEAT_SECONDS) == []
    clock.now += LONGEST_LOOK + 1
    assert looks(monitor, clock, LIMIT_SECONDS) == []
    assert looks(monitor, clock, 2 * BEAT_SECONDS) == [run]


def test_a_flow_process_that_outlives_its_worker_ends_before_it_could_be_called_dead() -> None:
    assert GRACE_SECONDS + 2 * BEAT_SECONDS < LIMIT_SECONDS


def test_a_monitor_without_a_folder_and_with_strange_files_finds_nothing(tmp_path: Path) -> None:
    clock = Clock()
    monitor = HeartbeatMonitor(tmp_path, clock)
    beat(tmp_path, uuid4())  # no folder: nothing is made, and no error
    assert not (tmp_path / "heartbeats").exists()
    home(tmp_path)
    (tmp_path / "heartbeats" / "notes.txt").write_text(str(time.time()))
    assert looks(monitor, clock, 3 * LIMIT_SECONDS) == []
