"""What the page shows of a population: fitness per generation, schedules of the winner, the family tree."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from hpo_core.report.population import lineage_tree, population_fitness
from hpo_core.report.series import Series, read_series
from hpo_core.report.style import Figure
from tests.report.test_report import World

PBT: dict[str, Any] = {"method": "pbt", "population": 8, "generations": 6, "steps_per_generation": 2}


@pytest.fixture(scope="module")
def played() -> Series:
    return read_series(World(search=PBT, name="evolved").play().entries())


def trace(figure: Figure | None, words: str) -> dict[str, Any]:
    assert figure is not None
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
