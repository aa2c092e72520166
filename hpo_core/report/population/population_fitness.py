"""The fitness of a population by generation."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from hpo_core.report.scale import scale
from hpo_core.report.series import Series
from hpo_core.report.study.learning_curves import CUT
from hpo_core.report.style import BEST, FAILED, Figure, axis, layout, level_color, rounded, text
from hpo_core.views.formatting import number

DOTS = 4_000


def population_fitness(series: Series) -> Figure | None:
    """All results of each generation, their median and the best of them; None without a second generation."""
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
    step = -(-len(dots) // DOTS)
    drawn = scale((value for _, _, value in dots), maximize=series.maximize)
    best = max if series.maximize else min
    generations = sorted(values)
    medians = [median(value for _, value in values[generation]) for generation in generations]
    bests = [best(values[generation], key=lambda item: item[1]) for generation in generations]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "a trial",
            "hoverinfo": "text",
            "x": [generation for generation, _, _ in dots[::step]],
            "y": [rounded(value) for _, _, value in dots[::step]],
            "text": [f"trial {n}, generation {g}: {number(v)}" for g, n, v in dots[::step]],
            "marker": {"color": level_color(1, 3), "size": 5, "opacity": 0.6},
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "median",
            "hoverinfo": "text",
            "x": generations,
            "y": [rounded(value) for value in medians],
            "text": [f"median of generation {g}: {number(v)}" for g, v in zip(generations, medians, strict=True)],
            "line": {"color": level_color(2, 3), "width": 2.5},
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "best",
            "hoverinfo": "text",
            "x": generations,
            "y": [rounded(value) for _, value in bests],
            "text": [
                f"best of generation {g}: {number(v)} (trial {n})" for g, (n, v) in zip(generations, bests, strict=True)
            ],
            "line": {"color": BEST, "width": 3},
        },
    ]
    if bad:
        edge = drawn.low if series.maximize else drawn.high
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"diverged or abandoned ({len(bad)})",
                "hoverinfo": "text",
                "x": [generation for _, generation in bad],
                "y": [rounded(edge)] * len(bad),
                "text": [f"trial {n}, generation {g}: no result to compare" for n, g in bad],
                "marker": {"symbol": "x", "size": 8, "color": FAILED},
            }
        )
    first, last = generations[0], generations[-1]
    few = f" One trial in {step} is drawn." if step > 1 else ""
    caption = (
        f"Each dot is a trial at its end. The median went from {number(medians[0])} in generation {first} to "
        f"{number(medians[-1])} in generation {last}, the best from {number(bests[0][1])} to {number(bests[-1][1])}."
        f"{few}{CUT if drawn.cut else ''}"
    )
    across = axis("generation", range=[first - 0.5, last + 0.5])
    shape = layout(420, xaxis=across, yaxis=drawn.axis(text(series.metric)))
    return Figure("population", "Fitness of the population", caption, data, shape)
