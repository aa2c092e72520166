"""Brackets, ceilings, stops and halts in the report, against the journal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpo_core import MemoryJournal, Study
from hpo_core.model.events import CeilingRaised, JobCompleted
from hpo_core.report.series import Series, read_series
from hpo_core.report.study_page import brackets, course, failure_rows, head, key_numbers, render
from hpo_core.report.style import Figure
from tests.methods import SEARCHES, spec_of
from tests.report.test_report import SPACE, World, events, html, rung_table, told, written
from tests.views.test_rungs_view import HUNDRED

LADDER: dict[str, Any] = {"configs": 60, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}
OWN = {"method": "asha", "brackets": [0, 1, 2], **LADDER}
SHARED = OWN | {"rung_system": "shared"}
PASHA = {"method": "pasha", **LADDER, "max_resource": 243}
STOPPING = {"method": "asha", "variant": "stopping", **LADDER}
Drawn = tuple[World, Series, dict[str, Figure]]


def traces(world: World, key: str) -> list[dict[str, Any]]:
    return told(world)[1][key].data


@pytest.fixture(scope="module")
def own() -> Drawn:
    """A study of three brackets with rungs of their own, and what is drawn of it."""
    world = World(search=OWN).play()
    return (world, *told(world))


@pytest.mark.parametrize("name", ["asha-shared", "stopping", "sha", "pasha", "pbt-generation", "grid-drawn"])
def test_every_method_has_its_pictures(name: str, tmp_path: Path) -> None:
    """Half-way; Plotly refuses what it does not know."""
    world = World(search=SEARCHES[name], space=spec_of(name).plain()["space"]).play(10)
    page = written(world, tmp_path)
    assert any(title in page for title in ("Climbing the rungs", "Trials over time", "Fitness of the population"))
    series, _ = told(world)
    state = world.study.state
    assert sum(map(sum, rung_table(series))) == state.completed_jobs + state.abandoned_trials
    assert [row[1] for row in rung_table(series)] == [rung.waiting for rung in world.study.method.rungs()]


def test_each_bracket_has_its_own_bars(own: Drawn) -> None:
    world, series, drawn = own
    labels = drawn["rungs"].layout["yaxis"]["ticktext"]
    assert labels == [
        "Rung 0 (1)", "Rung 1 (3)", "Rung 2 (9)", "Rung 3 (27)",
        "Rung 0 (3)", "Rung 1 (9)", "Rung 2 (27)", "Rung 0 (9)", "Rung 1 (27)",
    ]  # fmt: skip
    heights = drawn["rungs"].layout["yaxis"]["tickvals"]
    assert heights[0] > heights[4] > heights[7] and len(set(heights)) == 9, "the first bracket is on top"
    headings = [note["text"] for note in drawn["rungs"].layout["annotations"]]
    assert headings == [f"<b>Bracket {s}: trials start at {3**s}</b>" for s in range(3)]
    assert [sum(row) for row in rung_table(series)] == [rung.results for rung in world.study.method.rungs()]
    assert headings == [note["text"] for note in drawn["ladder"].layout["annotations"]]


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


def test_the_table_of_brackets_says_what_each_took_and_brought(own: Drawn) -> None:
    _, series, _ = own
    unlabelled = re.sub(' data-label="[^"]*"', "", html(brackets(series)))
    for bracket in range(3):
        trials = [trial for trial in series.trials if trial.bracket == bracket]
        units, results = sum(t.resource for t in trials), sum(len(t.results) for t in trials)
        cells = [bracket, 3**bracket, len(trials), results, units]
        assert "<tr>" + "".join(f'<td class="n">{cell}</td>' for cell in cells) in unlabelled
    one = read_series(World().play().entries())
    assert html(brackets(one)) == ""


def test_shared_rungs_say_who_began_where() -> None:
    world = World(search=SHARED).play()
    series, drawn = told(world)
    assert [len(ladder.rungs) for ladder in series.bands.ladders] == [4]
    words = drawn["rungs"].data[-1]["text"]
    for bracket in range(3):
        began = sum(trial.bracket == bracket for trial in series.trials)
        assert f"; {began} began here" in words[bracket]
    assert "began" not in words[3]
    assert "share these rungs" in drawn["rungs"].caption
    assert "All brackets share their rungs" in html(brackets(series))
    assert [sum(row) for row in rung_table(series)] == [rung.results for rung in world.study.method.rungs()]


@pytest.mark.slow
def test_a_hundred_brackets_are_drawn_by_shape(tmp_path: Path) -> None:
    world = World(search=HUNDRED, slots=16, failing=False).play(1000)
    series, drawn = told(world)
    assert len(series.bands.all) == 15 and len(series.bands.ladders) == 5
    assert drawn["rungs"].layout["height"] < 900 and drawn["ladder"].layout["height"] < 1800
    done = world.study.method.rungs()
    assert sum(map(sum, rung_table(series))) == sum(rung.results for rung in done)
    assert html(brackets(series)).count("<tr>") == 1 + 5
    written(world, tmp_path)


def test_closed_rungs_and_openings_are_drawn() -> None:
    world = World(search=PASHA).play()
    series, drawn = told(world)
    raised = events(world, CeilingRaised)
    closed = [rung for rung in world.study.method.rungs() if not rung.is_open]
    assert raised and closed, "this world opens some rungs and not all"
    words = drawn["rungs"].data[-1]["text"]
    assert [text.strip() for text in words].count("closed") == len(closed)
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


def test_results_under_a_ceiling_are_not_called_dropped() -> None:
    world = World(search=PASHA).play()
    series, drawn = told(world)
    assert any(trace["name"] == "reached the ceiling" for trace in drawn["rungs"].data)
    at = next(k for k, band in enumerate(series.bands.all) if band.kind == "ceiling")
    dropped = next(trace for trace in drawn["rungs"].data if trace["name"] == "not promoted")
    assert dropped["x"][at] == 0 and "reached the ceiling" in drawn["rungs"].data[-1]["text"][at]


def test_the_stopping_variant_is_told_in_its_own_words() -> None:
    world = World(search=STOPPING).play()
    _, drawn = told(world)
    names = {trace.get("name") for trace in drawn["rungs"].data}
    assert {"went on", "stopped"} <= names and not names & {"promoted", "not promoted"}
    stopped = next(trace for trace in drawn["rungs"].data if trace["name"] == "stopped")
    diverged = sum(event.loss is None for event in events(world, JobCompleted))
    assert sum(stopped["x"]) == sum(t.stopped is not None for t in world.study.state.trials) - diverged
    assert "goes on at once, or is stopped" in drawn["ladder"].caption


def with_stop(stop: dict[str, Any], search: dict[str, Any]) -> World:
    world = World(failing=False, diverging=False)
    world.journal = MemoryJournal()
    plain = {"study": "digits-mlp", "metric": {"name": "val_loss"}, "space": SPACE, "search": search, "stop": stop}
    world.study = Study.create(plain, world.journal, clock=lambda: world.now)
    return world


def test_a_stop_rule_is_told_in_words() -> None:
    endless = {"method": "asha", "min_resource": 1, "reduction_factor": 3}
    world = with_stop({"total_resource": 80}, endless).play()
    series, _ = told(world)
    page = render(series)
    why = "stop rule met: total_resource = 80 units of training are given out; a resume grants 80 more"
    assert page.count(why) == 2, "in the head and in the course of the study"
    assert "of 80 units trained" in page and "no maximum resource" in page
    assert "saving" not in [label for label, _, _ in key_numbers(series)]
    world.study.recover("again:2")
    world.play(60)
    series, _ = told(world)
    assert html(course(series)).count("halted") >= 1 and "resumed" in html(course(series))


def test_an_extension_is_part_of_the_course() -> None:
    world = World(failing=False).play()
    assert html(course(read_series(world.entries()))) == ""
    world.study.extend(7)
    assert "7 more configurations were asked for" in html(course(read_series(world.entries())))


def test_failures_name_the_bracket_where_there_are_several(own: Drawn) -> None:
    rows = failure_rows(own[1])
    gone = [cells for _, cells in rows if cells[0] == "trial abandoned"]
    assert gone and all(" of bracket " in cells[2] for cells in gone)
