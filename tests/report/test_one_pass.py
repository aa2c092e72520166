"""A report, a comparison and MLflow's copy read each entry of a journal once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from hpo_core import Study
from hpo_core.model.events import Entry
from hpo_core.report import write_report
from hpo_core.report.comparison import Comparison
from hpo_core.tracking.tracked_study import TrackedStudy
from tests.conftest import World, played
from tests.methods import spec_of


def once(entries: Iterable[Entry]) -> Iterator[Entry]:
    """An iterator: what would read it twice finds nothing the second time."""
    yield from entries


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each entry was replayed."""
    found: Counter[int] = Counter()
    replay = Study.replay

    def counted(study: Study, entry: Entry) -> None:
        found[entry.seq] += 1
        replay(study, entry)

    monkeypatch.setattr(Study, "replay", counted)
    return found


@pytest.mark.parametrize("search", ["asha", "pbt"])
def test_a_report_replays_every_entry_once(search: str, applied: Counter[int], tmp_path: Path) -> None:
    study = played(spec_of(search), World(4, failures=0.05))
    path = write_report(once(study.journal.entries("world")), tmp_path / "report.html")
    assert applied == Counter(range(study.seq))
    assert path.read_text() == write_report(list(study.journal.entries("world")), tmp_path / "again.html").read_text()


def test_a_comparison_replays_every_entry_once(applied: Counter[int]) -> None:
    study = played(spec_of("asha"), World(4, failures=0.05))
    (series,) = Comparison.of([once(study.journal.entries("world"))]).studies
    assert applied == Counter(range(study.seq))
    assert series.by_resource[0][-1][1] == series.by_time[0][-1][1] == study.state.incumbent.loss  # type: ignore[union-attr]


def test_the_copy_in_mlflow_replays_every_entry_once(applied: Counter[int]) -> None:
    study, fold = played(spec_of("asha"), World(4, failures=0.05)), TrackedStudy()
    for entry in study.journal.entries("world"):
        fold.add(entry)
    assert applied == Counter(range(study.seq))
