"""Tables of learning curves: what training costs where runs ended early, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hpo_core.model.errors import SpecError
from hpo_core.model.trial import Checkpoint, Job, Rung
from hpo_core.simulation import CurveTable

NAN = float("nan")


def table(path: Path, times: list[list[float]] | None, lengths: list[int] | None = None) -> CurveTable:
    losses = np.array([[0.5, 0.4, 0.3, 0.35], [0.6, 0.7, NAN, NAN]])
    more = {} if times is None else {"time_s": np.array(times)}
    more |= {} if lengths is None else {"n_points": np.array(lengths)}
    meta = json.dumps({"primary_metric": "loss", "direction": "min"})
    np.savez(path, loss=losses, fidelity=np.arange(1.0, 5.0), meta_json=np.array(meta), **more)
    return CurveTable.load(path)


def cost(found: CurveTable, row: int, begin: int, target: int) -> float:
    start = Checkpoint("c", "", begin, 0) if begin else None
    return found.cost(Job(0, 0, Rung(0, 0), target, {"row": row}, start))


def test_measured_seconds_are_what_was_measured(tmp_path: Path) -> None:
    """Cumulative seconds are no number of points: 100 s at 4 points are not cut to 4 s."""
    found = table(tmp_path / "ragged.npz", [[25.0, 50.0, 75.0, 100.0], [30.0, 60.0, NAN, NAN]], [4, 2])
    assert [cost(found, 0, 0, target) for target in (1, 2, 3, 4)] == [25.0, 50.0, 75.0, 100.0]
    assert [cost(found, 1, 0, target) for target in (1, 2, 3, 4)] == [30.0, 60.0, 60.0, 60.0]
    assert cost(found, 1, 2, 4) == 0.0, "it had ended by its own rule"


def test_made_up_units_end_with_the_run(tmp_path: Path) -> None:
    found = table(tmp_path / "units.npz", None, [4, 2])
    assert [cost(found, row, 0, 4) for row in (0, 1)] == [4.0, 2.0]


@pytest.mark.parametrize("second", [[NAN, 60.0, NAN, NAN], [NAN, NAN, NAN, NAN], [30.0, float("inf"), 60.0, 70.0]])
def test_a_duration_that_is_not_known_is_refused(tmp_path: Path, second: list[float]) -> None:
    with pytest.raises(SpecError, match=r"row 1 of time_s has no time where it has one later, or none at all"):
        table(tmp_path / "gaps.npz", [[1.0, 2.0, 3.0, 4.0], second], [4, 2])
