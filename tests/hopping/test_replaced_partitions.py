"""Partitions that a pattern names, replaced for a moment by others of the same size while a real study runs."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import hpo_core as hpo
from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.model.events import JobCompleted
from hpo_core.partitioning.holdings import Holdings
from hpo_core.partitioning.resolution import with_partitions
from hpo_core.replay.audit import audit
from tests.conftest import make_spec
from tests.waiting import eventually

RIGHT, WRONG = b"right content".ljust(64), b"other content".ljust(64)


class Seen:
    """How many units of a model read right and wrong content."""

    def __init__(self) -> None:
        self.right = self.wrong = 0

    def state_dict(self) -> dict[str, int]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


def train(trial: Any) -> None:
    """Counts what it reads; each unit is noted."""
    seen = Seen()
    trial.track(seen=seen)
    for _ in trial.steps():
        if trial.partition.read_bytes() == RIGHT:
            seen.right += 1
        else:
            seen.wrong += 1
        with Path(trial.params["notes"]).open("a") as notes:
            notes.write("unit\n")
        trial.report(loss=float(seen.wrong), right=float(seen.right))


@pytest.mark.slow
def test_no_unit_trains_on_files_of_the_same_size_that_take_the_place_of_partitions(tmp_path: Path) -> None:
    data, notes, home = tmp_path / "data", tmp_path / "notes", tmp_path / "home"
    data.mkdir()
    notes.touch()
    for number in range(2):
        (data / f"part-{number}.bin").write_bytes(RIGHT)
    units, swapped = 8 * 4 * 2, threading.Event()

    def swap() -> None:
        """Each file is another one until units have met that, then it is itself again."""
        for number in range(2):
            path, away = data / f"part-{number}.bin", data / f"away-{number}"
            count = eventually(lambda: len(notes.read_text().splitlines())) + 8
            eventually(lambda count=count: len(notes.read_text().splitlines()) >= min(count, units // 2))
            other = data / f"other-{number}"
            other.write_bytes(WRONG)
            path.rename(away)
            other.rename(path)
            swapped.wait(3)  # longer than between two looks
            away.rename(path)
        swapped.set()

    changes = threading.Thread(target=swap, daemon=True)
    changes.start()
    result = hpo.tune(
        train, {"x": hpo.Float(0, 1)}, metric="loss", method=hpo.Random(configs=8, max_resource=4), name="s",
        home=home, data={"partitions": "part-*.bin", "folder": str(data)}, constants={"notes": str(notes)}, workers=2,
        progress=False, prefect="off", tracking={"mlflow": "off"},
    )  # fmt: skip
    assert swapped.is_set()
    entries = list(Home(home).open_journal().entries("s"))
    assert audit(entries).clean
    reports = [event for entry in entries for event in entry.events if isinstance(event, JobCompleted)]
    assert len(reports) == 8
    assert all(event.metrics == {"loss": 0.0, "right": 8.0} for event in reports), "4 epochs of 2 partitions"
    assert all(str(file.digest).startswith("blake3:") for file in result.spec.partitions), "the journal has them"


def test_files_that_are_seen_get_digests_and_their_holders_are_held_to_them(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin", "c.bin"):
        (tmp_path / name).write_bytes(RIGHT)
    stated = "0" * 64
    listed = ["a.bin", {"name": "b.bin", "digest": stated}, {"name": "c.bin", "bytes": 5}, "elsewhere.bin"]
    spec = make_spec(objective="a:b", data={"partitions": listed, "folder": str(tmp_path)})
    assert all(file.digest in (None, stated) for file in with_partitions(spec).partitions), "nothing is read"
    a, b, c, elsewhere = with_partitions(spec, digests=True).partitions
    assert str(a.digest).startswith("blake3:") and a.bytes == 64
    assert b.digest == stated
    assert c.digest is None and c.bytes == 5, "what is here is another file than the one described"
    assert elsewhere.digest is None
    holdings = Holdings(tmp_path, [a])
    assert holdings.look().names == {"a.bin"}
    shutil.copy(tmp_path / "a.bin", tmp_path / "copy")
    (tmp_path / "a.bin").write_bytes(WRONG)
    assert "its content is another one" in holdings.look().problems["a.bin"]
    (tmp_path / "copy").replace(tmp_path / "a.bin")
    assert holdings.look().names == {"a.bin"}


def test_a_file_that_is_being_written_when_the_study_begins_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.bin").write_bytes(RIGHT)
    spec = make_spec(objective="a:b", data={"partitions": "*.bin", "folder": str(tmp_path)})
    from hpo_core.partitioning import resolution

    read = resolution.digest_of

    def written_meanwhile(opened: Any) -> str:
        (tmp_path / "a.bin").write_bytes(WRONG)
        return read(opened)

    monkeypatch.setattr(resolution, "digest_of", written_meanwhile)
    with pytest.raises(SpecError, match="changed while it was read"):
        with_partitions(spec, digests=True)
