"""Figures of a population: fitness by generation, the family tree, and the schedules of the winner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from hpo_core.model.errors import HpoError
from hpo_core.model.space import ListedParameter, NumberParameter, Parameter
from hpo_core.report.style import (
    BEST,
    CUT,
    FAILED,
    GAP,
    LOG,
    Figure,
    Point,
    Trace,
    axis,
    axis_key,
    layout,
    level_color,
    rows,
    scale,
    text,
    trace,
    word,
)
from hpo_core.views.formatting import number
from hpo_core.views.lineage import Birth, Lineage, Segment
from hpo_core.views.series import Series

FITNESS_DOTS, SCHEDULE_DOTS = 4_000, 1_500
"""Trials drawn in the figure of fitness, and in each row of the schedules."""
ROWS = 12
"""Parameters whose schedules are drawn."""


def population_fitness(series: Series) -> Figure | None:
    """All results of each generation, their median and the best of them; None before there is a result."""
    lineage = series.lineage
    if lineage is None:
        return None
    values: dict[int, list[tuple[int, float]]] = {}
    bad: list[tuple[int, int]] = []
    for trial in series.trials:
        generation = lineage.births[trial.number].generation
        value = series.final(trial)
        if value is not None and math.isfinite(value):
            values.setdefault(generation, []).append((trial.number, value))
        elif trial.results or trial.abandoned is not None:
            bad.append((trial.number, generation))
    if not values:
        return None
    dots = [(generation, number_, value) for generation, here in values.items() for number_, value in here]
    step = -(-len(dots) // FITNESS_DOTS)
    drawn = scale((value for _, _, value in dots), maximize=series.maximize)
    best = max if series.maximize else min
    generations = sorted(values)
    medians = [(g, median(value for _, value in values[g])) for g in generations]
    bests = [(g, *best(values[g], key=lambda item: item[1])) for g in generations]
    each = [(g, v, f"trial {n}, generation {g}: {number(v)}") for g, n, v in dots[::step]]
    middle = [(g, v, f"median of generation {g}: {number(v)}") for g, v in medians]
    top = [(g, v, f"best of generation {g}: {number(v)} (trial {n})") for g, n, v in bests]
    data = [
        trace("a trial", each, level_color(1, 3), size=5, opacity=0.6),
        trace("median", middle, level_color(2, 3), mode="lines", width=2.5),
        trace("best", top, BEST, mode="lines", width=3),
    ]
    if bad:
        edge = drawn.low if series.maximize else drawn.high
        lost = [(g, edge, f"trial {n}, generation {g}: no result to compare") for n, g in bad]
        data.append(trace(f"diverged or abandoned ({len(bad)})", lost, FAILED, size=8, marker={"symbol": "x"}))
    first, last = generations[0], generations[-1]
    few = f" One trial in {step} is drawn." if step > 1 else ""
    caption = (
        f"Each dot is a trial at its end. The median went from {number(medians[0][1])} in generation {first} to "
        f"{number(medians[-1][1])} in generation {last}, the best from {number(bests[0][2])} to {number(bests[-1][2])}."
        f"{few}{CUT if drawn.cut else ''}"
    )
    across = axis("generation", range=[first - 0.5, last + 0.5])
    shape = layout(420, xaxis=across, yaxis=drawn.axis(text(series.metric)))
    return Figure("population", "Fitness of the population", caption, data, shape)


def lineage_tree(series: Series) -> Figure | None:
    lineage = series.lineage
    if lineage is None or not lineage.children:
        return None
    births, survivors = lineage.births, lineage.survivors()
    best = series.study.best
    path = lineage.ancestry(best.trial) if best is not None else []
    members = 1 + max(birth.member for birth in births)
    thick = 2.4 if members <= 60 else 1.2
    others = [b for b in births if b.trial not in survivors and b.trial not in path]
    living = [births[trial] for trial in sorted(survivors.difference(path))]
    crosses = [b for b in births if series.trials[b.trial].abandoned is not None]
    data: list[Trace] = []
    if others:
        data.append(_branches(series, others, "no descendants at the end", "#c3cad2", width=0.45 * thick, size=4))
    if living:
        name = "lives on in the last generation"
        data.append(_branches(series, living, name, level_color(2, 3), width=thick, size=6))
    if crosses:
        points = [(b.generation, b.member, _words(series, lineage, b)) for b in crosses]
        data.append(trace(f"abandoned ({len(crosses)})", points, FAILED, size=8, marker={"symbol": "x"}))
    if best is not None:
        name = f"path to trial {best.trial}, the best"
        data.append(_branches(series, [births[trial] for trial in path], name, BEST, width=3.5, size=8))
    last = lineage.generations() - 1
    roots = {birth.trial for birth in births if birth.parent is None}
    moved = sum(birth.parent is not None and birth.member != births[birth.parent].member for birth in births)
    caption = (
        f"Each dot is a trial, each line the training it continues; {moved:,} of {len(births) - len(roots):,} children "
        f"went on from another member. Training that {len(roots & survivors):,} of {len(roots):,} first trials began "
        f"lives on in generation {last}."
    )
    up = axis("member", range=[members - 0.4, -0.6], showgrid=False)
    if members <= 12:
        up |= {"tickvals": list(range(members))}
    across = axis("generation", range=[-0.4, last + 0.4], showgrid=False)
    shape = layout(min(900, 200 + 18 * members), xaxis=across, yaxis=up)
    return Figure("lineage", "Lineage", caption, data, shape, min_width=min(1100, 26 * last))


def _branches(series: Series, births: Iterable[Birth], name: str, color: str, *, width: float, size: int) -> Trace:
    lineage = series.lineage
    assert lineage is not None
    points: list[Point] = []
    sizes: list[int] = []
    for birth in births:
        if birth.parent is not None:
            parent = lineage.births[birth.parent]
            points.append((parent.generation, parent.member, ""))
            sizes.append(0)
        points += [(birth.generation, birth.member, _words(series, lineage, birth)), GAP]
        sizes += [size, 0]
    marker = {"opacity": 1, "line": {"width": 0}}
    return trace(name, points, color, mode="lines+markers", width=width, size=sizes, marker=marker)


def _words(series: Series, lineage: Lineage, birth: Birth) -> str:
    trial = series.trials[birth.trial]
    value = series.final(trial)
    state = number(value) if value is not None else "diverged" if trial.results else trial.status
    lines = [f"<b>trial {birth.trial}</b>, generation {birth.generation}, member {birth.member}: {state}"]
    if birth.initiator is not None:
        met = "nobody" if birth.opponent is None else f"trial {birth.opponent}"
        lines.append(f"trial {birth.initiator} met {met}")
    if birth.parent is not None:
        before = series.trials[birth.parent].params
        lines.append(f"goes on from trial {birth.parent}")
        lines += [
            f"{text(name, 24)}: {word(before.get(name), 16)} → {word(birth.params.get(name), 16)}"
            for name in birth.explored[:8]
        ]
    return "<br>".join(lines)


def schedules(series: Series) -> Figure | None:
    """One row per parameter that changed: the best trial's as a step line, the population's as pale dots."""
    best = series.study.best
    if series.lineage is None or best is None:
        return None
    try:
        found = series.lineage.schedule(best.trial, best.resource)
    except HpoError:  # a journal that was cut in the middle of its past
        return None
    space = series.study.spec.search_space().parameters
    values = {name: _values(found, name) for name in dict.fromkeys(name for one in found for name in one.params)}
    changing = [name for name in space if len(values.get(name, ())) > 1]
    constant = [f"{text(name)} = {word(each[0][2])}" for name, each in values.items() if name not in changing]
    if not changing:
        return None
    names = changing[:ROWS]
    shape = rows(len(names), height=112, gap=18)
    data: list[Trace] = []
    step = -(-len(series.trials) // SCHEDULE_DOTS) or 1
    title = f"trial {best.trial} and its ancestors"
    for row, name in enumerate(names):
        key, (place, side) = axis_key(row), _side(name, space[name])
        shape[f"xaxis{key}"] |= axis("resource trained for" * (row == len(names) - 1), range=[0, found[-1].end])
        shape[f"yaxis{key}"] |= side
        dots = [
            (0.5 * (t.base + t.resource), place(value), f"trial {t.number}: {text(name)} = {word(value)}")
            for t in series.trials[::step]
            if name in t.params
            for value in [t.params[name]]
        ]
        line: list[Point] = []
        for start, end, value in values[name]:
            if line and line[-1][0] != start:  # inactive in between
                line.append(GAP)
            words = f"{text(name)} = {word(value)} from {start:,} to {end:,}"
            line += [(start, place(value), words), (end, place(value), words)]
        where: dict[str, Any] = {"xaxis": f"x{key}", "yaxis": f"y{key}", "showlegend": row == 0}
        data += [
            trace("the population", dots, level_color(0, 3), size=4, opacity=0.7, legendgroup="population", **where),
            trace(title, line, BEST, mode="lines", width=3, legendgroup="best", **where),
        ]
    same = f" Unchanged: {', '.join(constant)}." if constant else ""
    left_out = f" {len(changing) - ROWS} more parameters are left out." if len(changing) > ROWS else ""
    caption = (
        f"The orange line is what trial {best.trial} and its ancestors were trained with, {len(found)} trials "
        f"one after the other; dots are what the population tried.{same}{left_out} A plain script can train along what "
        f"<code>hpo schedule {text(series.study.spec.study)}</code> prints."
    )
    height = shape.pop("height") + 80
    return Figure("schedules", "Schedules that led to the best result", caption, data, layout(height, **shape))


def _values(segments: Sequence[Segment], name: str) -> list[tuple[int, int, Any]]:
    # Of one parameter, equal neighbours joined; left out where it is inactive.
    found: list[tuple[int, int, Any]] = []
    for one in segments:
        if name in one.params:
            start, value = one.start, one.params[name]
            if found and found[-1][1] == start and repr(found[-1][2]) == repr(value):
                start = found.pop()[0]
            found.append((start, one.end, value))
    return found


def _side(name: str, parameter: Parameter) -> tuple[Callable[[Any], float | None], dict[str, Any]]:
    # Where a value stands on the axis of its parameter, and that axis.
    title = f"<b>{text(name, 30)}</b>"
    if isinstance(parameter, ListedParameter):
        words = [word(choice, 16) for choice in parameter.listed()]
        places = {choice: float(place) for place, choice in enumerate(words)}
        return lambda value: places.get(word(value, 16)), axis(title, tickvals=list(range(len(words))), ticktext=words)
    assert isinstance(parameter, NumberParameter)
    return float, axis(title, **(LOG if parameter.log else {"nticks": 5}))
