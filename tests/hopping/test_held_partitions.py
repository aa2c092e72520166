"""A worker says which partitions it holds, however long it takes to find out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core.model.partition_file import PartitionFile
from hpo_core.partitioning.holdings import Held, Holdings
from hpo_core.training.partitions import held_partitions as here

FILES = [PartitionFile(name="part-0.npz"), PartitionFile(name="part-1.npz")]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for study in ("study", "other"):
        here.forget_partitions(study)


def test_digests_that_take_long_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller asks again when a worker does not answer in time; each would read all data once more."""
    (tmp_path / "part-1.npz").write_bytes(b"data")
    go_on, original, looks = threading.Event(), Holdings.look, []

    def look(self: Holdings) -> Held:
        looks.append(self)
        assert go_on.wait(60)
        return original(self)

    monkeypatch.setattr(Holdings, "look", look)
    monkeypatch.setattr(here, "FIRST_SECONDS", 0.01)
    for _ in range(3):
        here.watch_partitions("study", str(tmp_path), FILES)
    assert len(looks) == 1
    assert "study" not in here.held_partitions(), "what is not known yet is not said to be nothing"
    go_on.set()
    assert here._watched["study"].known.wait(60)
    assert here.held_partitions()["study"] == ([1], {})
    here.watch_partitions("study", str(tmp_path), FILES)
    assert len(looks) == 1


def test_small_partitions_are_known_at_once(tmp_path: Path) -> None:
    (tmp_path / "part-0.npz").write_bytes(b"data")
    here.watch_partitions("study", str(tmp_path), FILES)
    assert here.held_partitions()["study"][0] == [0]
    here.watch_partitions("study", str(tmp_path / "elsewhere"), FILES)
    assert here.held_partitions()["study"][0] == [], "another folder is looked at anew"
