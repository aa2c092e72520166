"""Brackets, ceilings, stops and halts in the report, against the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.events import CeilingRaised
from hpo_core.report.ladder import rung_section
from hpo_core.report.series import Series
from hpo_core.report.study_page import course, failure_rows, head
from hpo_core.report.style import Figure
from tests.methods import SEARCHES, spec_of
from tests.report.test_report import World, events, html, told, written

LADDER: dict[str, Any] = {"configs": 60, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}
OWN = {"method": "asha", "brackets": [0, 1, 2], **LADDER}
PASHA = {"method": "pasha", **LADDER, "max_resource": 243}
Drawn = tuple[World, Series, dict[str, Figure]]


@pytest.fixture(scope="module")
def own() -> Drawn:
    """A study of three brackets with rungs of their own, and what is drawn of it."""
    world = World(search=OWN).play()
    return (world, *told(world))


@pytest.mark.parametrize("name", ["asha-shared", "stopping", "sha", "pasha", "pbt-generation", "grid"])
def test_every_method_has_its_pictures(name: str, tmp_path: Path) -> None:
    """Half-way; Plotly refuses what it does not know."""
    world = World(search=SEARCHES[name], space=spec_of(name).plain()["space"]).play(10)
    page = written(world, tmp_path)
    assert any(title in page for title in ("Climbing the rungs", "Jobs over time", "Fitness of the population"))
    series, _ = told(world)
    assert sum(len(band.results) for band in series.bands.all) == world.study.state.completed_jobs


def test_trials_climb_in_the_panel_of_their_bracket(own: Drawn) -> None:
    _, series, drawn = own
    axis = drawn["ladder"].layout["yaxis"]
    height = dict(zip(zip(axis["ticktext"], axis["tickvals"], strict=True), axis["tickvals"], strict=True))
    rungs = sorted(value for (words, _), value in height.items() if words != "start")
    tops = {0: rungs[-1] + 0.5, 1: rungs[-5] + 0.5, 2: rungs[-8] + 0.5}
    bases = {0: rungs[-4] - 1, 1: rungs[-7] - 1, 2: rungs[-9] - 1}
    seen = set()
    for trace in drawn["ladder"].data:
        for words, y in zip(trace["text"], trace["y"], strict=True):
            if words:
                bracket = series.trials[int(words.split()[1].rstrip(","))].bracket
                assert bases[bracket] - 1e-9 <= y <= tops[bracket]
                seen.add(bracket)
    assert seen == {0, 1, 2}
    headings = [note["text"] for note in drawn["ladder"].layout["annotations"]]
    assert headings == [f"<b>Bracket {s}: trials start at {3**s}</b>" for s in range(3)]


def test_closed_rungs_and_openings_are_drawn() -> None:
    world = World(search=PASHA).play()
    series, drawn = told(world)
    raised = events(world, CeilingRaised)
    closed = [rung for rung in world.study.method.rungs() if not rung.is_open]
    assert raised and closed, "this world opens some rungs and not all"
    assert html(rung_section(series)).count(">closed<") == len(closed)
    assert f"ceiling {raised[-1].level} of 243" in head(series, {})
    notes = drawn["ladder"].layout["annotations"]
    assert [note["text"] for note in notes] == [f"rung {event.rung} opens" for event in raised]
    times = [entry.time - series.began for entry in world.entries() for e in entry.events if type(e) is CeilingRaised]
    unit = 60 if "minutes" in drawn["ladder"].layout["xaxis"]["title"]["text"] else 1
    assert [note["x"] * unit for note in notes] == pytest.approx(times, rel=1e-4)
    shapes = drawn["ladder"].layout["shapes"]
    assert len(shapes) == len(world.study.method.rungs()) - len(closed), "no band where nothing is open"
    assert [shape["x0"] for shape in shapes if shape["xref"] == "x"] == [note["x"] for note in notes]
    table = html(course(series))
    for event in raised:
        assert f"trial {event.trial} came to place {event.place}, where rung {event.rung - 2} had" in table


def test_failures_name_the_bracket_where_there_are_several(own: Drawn) -> None:
    rows = failure_rows(own[1])
    gone = [cells for _, cells in rows if cells[0] == "trial abandoned"]
    assert gone and all(" of bracket " in cells[2] for cells in gone)
