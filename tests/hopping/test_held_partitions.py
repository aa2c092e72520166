"""A worker says which partitions it holds, however long it takes to find out."""

from __future__ import annotations

import threading
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
