"""A grid study in the report: states and metric of its points."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from hpo_core.model.events import JobCompleted, JobGranted
from hpo_core.report.curves import GridCells, grid_figures
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


def drawn(series: Series) -> dict[str, Figure]:
    found = {figure.key: figure for figure in grid_figures(series) if figure is not None}
    for figure in found.values():
        go.Figure(figure.data, figure.layout)  # Plotly's own validation
    return found


def cells(figure: Figure, key: str = "z") -> list[Any]:
    return [cell for trace in figure.data if trace["type"] == "heatmap" for row in trace[key] for cell in row]


def test_two_parameters_are_the_axes_of_both_maps() -> None:
    series = played("width", "lr", lr=9, reports=12, failures=0.3, waiting=2)
    maps = drawn(series)
    states = maps["grid-states"]
    assert len(cells(states)) == 36
    events = [event for trial in series.trials for event in trial.results]
    assert cells(states).count(2) == len(events) == sum(isinstance(event, JobCompleted) for event in events)
    assert cells(states).count(1) == len(series.study.state.placed) == len(series.study.state.running) - 2 > 0
    assert states.title == f"The grid: {_counted(states)}"
    assert states.data[0]["x"][0] == "0.0001" and states.data[0]["y"] == ["64", "128", "256", "512"]
    best = min(value for value in cells(maps["grid-metric"]) if value is not None)
    assert sum(value is not None for value in cells(maps["grid-metric"])) == len(events)
    text = cells(maps["grid-metric"], "text")[cells(maps["grid-metric"]).index(best)]
    incumbent = series.study.best
    assert incumbent is not None and text.startswith(f"trial {incumbent.trial}: complete<br>"), (
        "a click finds the trial"
    )
    assert "data" in render(series)


def _counted(figure: Figure) -> str:
    counts = [cells(figure).count(k) for k in range(4)]
    words = zip(counts, ("pending", "in progress", "complete", "failed"), strict=True)
    return ", ".join(f"{count} {word}" for count, word in words if count)


def test_a_third_parameter_divides_the_columns_and_a_fourth_is_summed() -> None:
    series = played("width", "lr", "opt", "decay", lr=5, decay=2, reports=60, failures=0)
    maps = drawn(series)
    states = maps["grid-states"]
    thirds, firsts = states.data[0]["x"]
    assert list(dict.fromkeys(thirds)) == ["sgd", "adam", "&lt;lamb&gt;"] and firsts[:5] * 3 == firsts
    assert len(cells(states)) == 60 and "A cell holds all values of decay" in states.caption
    summed = [text for text in cells(states, "text") if text.startswith("1 in progress, 1 complete")]
    assert all("trial" not in text for text in summed)
    known = GridCells(series.study.spec.search_space().parameters, grid_points(series.study))
    assert (known.names, known.summed) == (["lr", "width", "opt"], ["decay"])


def test_one_parameter_is_one_row_and_nothing_to_compare_draws_no_metric() -> None:
    series = played("width", reports=1, failures=0)
    maps = drawn(series)
    assert maps["grid-states"].data[0]["y"] == [""] and "grid-metric" not in maps
    assert len(cells(maps["grid-states"])) == 4
    before = played("width", "opt", reports=0)
    assert before.trials == [] or all(isinstance(t.granted, JobGranted) for t in before.trials)
    assert set(cells(drawn(before)["grid-states"])) == {0}


def test_other_methods_have_no_map() -> None:
    assert grid_figures(read_series(World().entries())) == []
