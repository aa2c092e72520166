"""Pictures of a search: brackets, ceilings and stops; a population; the one that Prefect shows."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest

from hpo_core.model.events import CeilingRaised
from hpo_core.report.ladder import rung_section
from hpo_core.report.pictures import search_picture
from hpo_core.report.population import lineage_tree, population_fitness
from hpo_core.report.study_page import course, failure_rows, head
from hpo_core.report.style import BEST, Figure
from hpo_core.study import Study
from hpo_core.views.series import Series, read_series
from hpo_flows.prefect_pages.artifacts import study_markdown
from tests.conftest import make_spec
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


PBT: dict[str, Any] = {"method": "pbt", "population": 8, "generations": 6, "steps_per_generation": 2}


@pytest.fixture(scope="module")
def played() -> Series:
    return read_series(World(search=PBT, name="evolved").play().entries())


def trace(figure: Figure | None, words: str) -> dict[str, Any]:
    (found,) = [item for item in figure.data if words in item["name"]]
    return found


@pytest.mark.parametrize("mode", ["min", "max"])
def test_best_and_median_of_each_generation(mode: str) -> None:
    series = read_series(World(search=PBT, mode=mode, metric="quality").play().entries())
    figure = population_fitness(series)
    assert series.lineage is not None
    for generation in range(6):
        values = [
            value
            for trial in series.trials
            if series.lineage.births[trial.number].generation == generation
            and (value := series.final(trial)) is not None
        ]
        best = max(values) if mode == "max" else min(values)
        assert trace(figure, "best")["y"][generation] == pytest.approx(best, rel=1e-5)
        assert trace(figure, "median")["y"][generation] == pytest.approx(median(values), rel=1e-5)
    dots = trace(figure, "a trial")
    crosses = [item for item in figure.data if "diverged" in item["name"]] if figure else []
    assert len(dots["x"]) + sum(len(item["x"]) for item in crosses) == len(series.trials) == 48


def test_the_tree_joins_every_child_to_its_parent(played: Series) -> None:
    figure = lineage_tree(played)
    assert figure is not None and played.lineage is not None and played.study.best is not None
    drawn = [
        ((item["x"][i], item["y"][i]), (item["x"][i + 1], item["y"][i + 1]))
        for item in figure.data
        if item["mode"] == "lines+markers"
        for i in range(len(item["x"]) - 1)
        if item["x"][i] is not None and item["x"][i + 1] is not None
    ]
    births = played.lineage.births
    place = [(birth.generation, birth.member) for birth in births]
    assert sorted(drawn) == sorted((place[b.parent], place[b.trial]) for b in births if b.parent is not None)
    alive = trace(figure, "lives on")
    dark = {(x, y) for x, y, size in zip(alive["x"], alive["y"], alive["marker"]["size"], strict=True) if size}
    winner = set(played.lineage.ancestry(played.study.best.trial))
    assert dark == {place[number] for number in played.lineage.survivors() - winner}
    path = trace(figure, "the best")
    assert {(x, y) for x, y in zip(path["x"], path["y"], strict=True) if x is not None} == {place[n] for n in winner}
    assert path["line"]["width"] > alive["line"]["width"] > trace(figure, "no descendants")["line"]["width"]


def played_by_hand(**changes: object) -> Study:
    study = Study.create(make_spec(**changes))
    while (job := study.ask()) is not None:
        study.tell(job, {study.spec.metric.name: abs(job.params["x"] - 0.3) + 1 / (job.target + 1)})
    return study


def test_a_dot_for_each_result_and_the_best_one_in_orange() -> None:
    study = played_by_hand()
    svg = search_picture(study)
    assert svg is not None and study.best is not None
    dots = [node.attrib for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("circle")]
    assert len(dots) == study.state.completed_jobs
    (orange,) = [dot for dot in dots if dot["fill"] == BEST]
    assert float(orange["cy"]) == max(float(dot["cy"]) for dot in dots), "the smallest value lies lowest"
    assert f"dot: trial {study.best.trial}" in svg


def test_a_page_holds_all_and_links_only_what_another_machine_can_open() -> None:
    links = {
        "MLflow": "http://mlflow:5000/#/runs/1",
        "Report": "file:///srv/a%20b/report.html",
        "Study folder": "/srv/a",
    }
    page = study_markdown(played_by_hand(), "12 jobs", links)
    assert "[MLflow](<http://mlflow:5000/#/runs/1>)" in page
    assert "- Report, on the machine of the run: `/srv/a b/report.html`" in page and "file://" not in page
    assert page.count("data:image/svg+xml") == 1
    assert "\n\n12 jobs\n\n" in page
