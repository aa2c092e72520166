"""A worker says which partitions it holds, however long it takes to find out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core.model.partition_file import PartitionFile
from hpo_core.partitioning.holdings import Held, Holdings
from hpo_core.training import partition_data as here

FILES = [PartitionFile(name="part-0.npz"), PartitionFile(name="part-1.npz")]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for study in ("study", "other"):
        here.forget_partitions(study)


def test_digests_that_take_long_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller asks again when a worker does not answer in time; each would read all data once more."""
    (tmp_path / "part-1.npz").write_bytes(b"data")
    began, go_on, original, looks = threading.Event(), threading.Event(), Holdings.look, []

    def look(self: Holdings) -> Held:
        looks.append(self)
        began.set()
        assert go_on.wait(600)
        return original(self)

    monkeypatch.setattr(Holdings, "look", look)
    monkeypatch.setattr(here, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(here, "LOOK_SECONDS", 3600.0)
    for _ in range(3):
        here.watch_partitions("study", str(tmp_path), FILES)
    assert began.wait(600)
    assert len(looks) == 1
    assert "study" not in here.held_partitions(), "what is not known yet is not said to be nothing"
    go_on.set()
    assert here._watched["study"].known.wait(600)
    assert here.held_partitions()["study"][:2] == ([1], {})
    here.watch_partitions("study", str(tmp_path), FILES)
    assert len(looks) == 1


def test_small_partitions_are_known_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "FIRST_SECONDS", 600.0)
    (tmp_path / "part-0.npz").write_bytes(b"data")
    here.watch_partitions("study", str(tmp_path), FILES)
    assert here.held_partitions()["study"][0] == [0]
    here.watch_partitions("study", str(tmp_path / "elsewhere"), FILES)
    assert here.held_partitions()["study"][0] == [], "another folder is looked at anew"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_look_that_fails_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ran out of memory or of threads must not be the last: the study would wait for this worker for ever."""
    (tmp_path / "part-0.npz").write_bytes(b"data")
    original_look, original_start, failures = Holdings.look, threading.Thread.start, [MemoryError(), RuntimeError()]

    def look(self: Holdings) -> Held:
        if len(failures) == 1:
            raise failures.pop()
        return original_look(self)

    def start(self: threading.Thread) -> None:
        if len(failures) == 2:
            raise failures.pop()
        original_start(self)

    monkeypatch.setattr(Holdings, "look", look)
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(here, "FIRST_SECONDS", 0.01)
    with pytest.raises(RuntimeError):
        here.watch_partitions("study", str(tmp_path), FILES)
    deadline = time.monotonic() + 600
    while "study" not in here.held_partitions() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert here.held_partitions()["study"][0] == [0] and not failures
