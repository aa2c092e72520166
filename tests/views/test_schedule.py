"""Schedules: what applies when, what is refused, and that the file needs nothing but Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpo_core.model.parameter_schedule
from hpo_core.model.parameter_schedule import Schedule, ScheduleError

ROWS = [(0, 2, {"lr": 0.1, "act": "relu"}, 4), (2, 3, {"lr": 0.1, "act": "tanh"}, 9), (3, 7, {"lr": 0.08}, 11)]


def test_at_a_border_the_values_behind_it_apply() -> None:
    schedule = Schedule(ROWS, study="s")
    assert [schedule.at(step).get("act") for step in range(7)] == ["relu", "relu", "tanh", None, None, None, None]
    assert schedule.at(1.999)["act"] == "relu" and schedule.at(2.0)["act"] == "tanh"
    assert schedule.names == ("lr", "act") and schedule.end == 7
    assert [schedule.segment(step).trial for step in (0, 2, 6)] == [4, 9, 11]


def test_equal_neighbours_are_one_value_and_gaps_stay() -> None:
    assert Schedule(ROWS).values("lr") == [(0, 3, 0.1), (3, 7, 0.08)]
    gap = [(0, 1, {"m": 1}, 0), (1, 2, {}, 1), (2, 3, {"m": 1}, 2), (3, 4, {"m": True}, 3)]
    assert Schedule(gap).values("m") == [(0, 1, 1), (2, 3, 1), (3, 4, True)]


def test_what_comes_back_cannot_change_the_schedule() -> None:
    schedule = Schedule(ROWS)
    schedule.at(0)["lr"] = 9
    assert schedule.at(0)["lr"] == 0.1


@pytest.mark.parametrize("step", [-1, 7, 7.5, float("nan"), float("inf")])
def test_steps_it_does_not_cover(step: float) -> None:
    with pytest.raises(ScheduleError, match=r"from 0 up to, not including, 7\. To train on .*at\(min\(step, 6\)\)"):
        Schedule(ROWS).at(step)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "no segment"),
        ([(1, 2, {}, 0)], "segment 0 starts at 1 where 0 is due"),
        ([(0, 2, {}, 0), (3, 4, {}, 0)], "segment 1 starts at 3 where 2 is due"),
        ([(0, 2, {}, 0), (1, 4, {}, 0)], "segment 1 starts at 1 where 2 is due"),
        ([(0, 0, {}, 0)], "segment 0 is .* start < end"),
        ([(0, 1.5, {}, 0)], "segment 0 is .* whole numbers"),
        ([(0, 1, {"lr": float("nan")}, 0)], "'lr' = nan"),
        ([(0, 1, {"lr": [{}]}, 0)], r"'lr' = \[{}\]"),
        ([(0, 1, None, 0)], "segment 0 is .* a mapping"),
        ([(0, 1, {})], r"must be \(start, end, params, trial\)"),
    ],
)
def test_no_schedule(rows: list[tuple[object, ...]], complaint: str) -> None:
    with pytest.raises(ScheduleError, match=complaint):
        Schedule(rows)  # type: ignore[arg-type]


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
params = st.dictionaries(st.text(), scalars, max_size=4)


@given(st.lists(st.tuples(st.integers(1, 10**6), params, st.integers(0, 10**6)), min_size=1, max_size=6), st.text())
def test_json_brings_it_back_exactly(parts: list[tuple[int, dict[str, object], int]], study: str) -> None:
    rows, at = [], 0
    for length, values, trial in parts:
        rows.append((at, at + length, values, trial))
        at += length
    schedule = Schedule(rows, study=study)
    again = Schedule.from_json(schedule.to_json())
    assert again == schedule and again.to_json() == schedule.to_json()
    assert repr(again.at(at - 1)) == repr(rows[-1][2])


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    text = Schedule(ROWS, study="s").to_json(path)
    assert path.read_text() == text and [item.name for item in tmp_path.iterdir()] == ["schedule.json"]
    assert Schedule.from_json(path) == Schedule.from_json(str(path)) == Schedule.from_json(text)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": "x"}, "is something else"),
        ({"version": 2}, "is something else"),
        ({"segments": 3}, "was changed since it was exported"),
        ({"segments": [{"start": 0}]}, "was changed since it was exported"),
    ],
)
def test_json_that_is_no_schedule(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ScheduleError, match=complaint):
        Schedule.from_json(json.dumps(json.loads(Schedule(ROWS).to_json()) | change))
    with pytest.raises(ScheduleError, match="is no JSON"):
        Schedule.from_json('{"segments": [NaN]}')


def test_the_file_alone_is_enough_for_a_plain_script(tmp_path: Path) -> None:
    """Copied beside a script and run by a Python without site-packages."""
    shutil.copy(hpo_core.model.parameter_schedule.__file__, tmp_path)
    Schedule(ROWS).to_json(tmp_path / "s.json")
    script = "from parameter_schedule import Schedule; s = Schedule.from_json('s.json'); print(s.at(2), s.end)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "{'lr': 0.1, 'act': 'tanh'} 7\n"


def test_importing_it_imports_nothing_heavy() -> None:
    script = (
        "import sys; from hpo_core import Schedule; print({'pydantic', 'numpy', 'msgspec', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
