"""A grid study in the report: states and metric of its points."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from hpo_core.model.events import JobCompleted, JobGranted
from hpo_core.report.curves import GridCells, grid_figure
from hpo_core.report.series import Series, read_series
from hpo_core.report.study_page import render
from hpo_core.report.style import Figure
from hpo_core.views.states import grid_points
from tests.report.packed_study import packed_study
from tests.report.test_report import World

SPACE: dict[str, Any] = {
    "width": {"type": "ordinal", "choices": [64, 128, 256, 512]},
    "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "opt": {"type": "categorical", "choices": ["sgd", "adam", "<lamb>"]},
}


def played(*names: str, reports: int = 10_000, failures: float = 0.08, waiting: int = 0, **points: int) -> Series:
    space = {name: SPACE.get(name, {"type": "float", "low": 0, "high": 1}) for name in names}
    search = {"method": "grid", "points": points}
    return read_series(packed_study(search, space=space, reports=reports, failures=failures, waiting=waiting))


def drawn(series: Series) -> Figure:
    found = grid_figure(series)
    assert found is not None
    go.Figure(found.data, found.layout)  # Plotly's own validation
    return found


def cells(figure: Figure, key: str = "z") -> list[Any]:
    return [cell for row in figure.data[0][key] for cell in row]


def test_two_parameters_are_the_axes_of_the_map() -> None:
    series = played("width", "lr", lr=9, reports=12, failures=0.3, waiting=2)
    grid = drawn(series)
    assert len(cells(grid)) == 36
    events = [event for trial in series.trials for event in trial.results]
    known = [value for value in cells(grid) if value is not None]
    assert len(known) == len(events) == sum(isinstance(event, JobCompleted) for event in events)
    marks = cells(grid, "text")
    assert marks.count("▸") == len(series.study.state.placed) == len(series.study.state.running) - 2 > 0
    assert grid.title.startswith("The grid: ") and f"{marks.count('✕')} failed" in grid.title
    assert grid.data[0]["x"][0] == "0.0001" and grid.data[0]["y"] == ["64", "128", "256", "512"]
    words = cells(grid, "hovertext")[cells(grid).index(min(known))]
    incumbent = series.study.best
    assert incumbent is not None and words.startswith(f"trial {incumbent.trial}: complete<br>"), (
        "a click finds the trial"
    )
    assert "data" in render(series)


def test_a_third_parameter_divides_the_columns_and_a_fourth_is_summed() -> None:
    series = played("width", "lr", "opt", "decay", lr=5, decay=2, reports=60, failures=0)
    grid = drawn(series)
    thirds, firsts = grid.data[0]["x"]
    assert list(dict.fromkeys(thirds)) == ["sgd", "adam", "&lt;lamb&gt;"] and firsts[:5] * 3 == firsts
    assert len(cells(grid)) == 60 and "A cell holds all values of decay" in grid.caption
    summed = [words for words in cells(grid, "hovertext") if words.startswith("1 in progress, 1 complete")]
    assert all("trial" not in words for words in summed)
    known = GridCells(series.study.spec.search_space().parameters, grid_points(series.study))
    assert (known.names, known.summed) == (["lr", "width", "opt"], ["decay"])


def test_one_parameter_is_one_row() -> None:
    grid = drawn(played("width", reports=1, failures=0))
    assert grid.data[0]["y"] == [""] and len(cells(grid)) == 4
    before = played("width", "opt", reports=0)
    assert before.trials == [] or all(isinstance(t.granted, JobGranted) for t in before.trials)
    assert set(cells(drawn(before))) == {None}


def test_other_methods_have_no_map() -> None:
    assert grid_figure(read_series(World().entries())) is None
