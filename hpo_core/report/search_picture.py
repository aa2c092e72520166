"""The picture of a search: a line for each trial, its metric by units of training. Plain SVG, for any page."""

from __future__ import annotations

from html import escape

from hpo_core.report.scale import scale
from hpo_core.report.style import BEST, DARK_PICTURE, FONT, GRID, INK, MUTED
from hpo_core.study import Study
from hpo_core.views.formatting import number

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 340, 76, 20, 20, 50
_BLUE = "#1c6dd0"
MOST_LINES = 200
"""Trials drawn at most: those that were trained furthest."""


def search_picture(study: Study) -> str | None:
    """The SVG as text; None before there is a finite result."""
    curves = {
        trial.number: [
            (result.resource, study.metric_value(result.loss)) for result in trial.results if result.loss is not None
        ]
        for trial in study.state.trials
    }
    kept = sorted((number for number, curve in curves.items() if curve), key=lambda n: (-curves[n][-1][0], n))
    drawn = {number: curves[number] for number in kept[:MOST_LINES]}
    best = study.best
    if not drawn or best is None:
        return None
    drawn |= {best.trial: curves[best.trial]}
    spec = study.spec.metric
    values = scale([value for curve in drawn.values() for _, value in curve], maximize=spec.mode == "max")
    low, high = values.place(values.low), values.place(values.high)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    low, high = low - pad, high + pad
    furthest = max(curve[-1][0] for curve in drawn.values())

    def x(resource: int) -> float:
        return round(_LEFT + resource / furthest * (_WIDTH - _LEFT - _RIGHT), 1)

    def height(place: float) -> float:
        return round(_HEIGHT - _BOTTOM - (place - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP), 1)

    def y(value: float) -> float:
        return height(values.place(min(max(value, values.low), values.high)))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'font-family="{escape(FONT)}" font-size="13" fill="{INK}">{DARK_PICTURE}'
        '<rect width="100%" height="100%" fill="#fff"/>'
    ]
    for tick in values.ticks(low, high):
        place = height(values.place(tick))
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{place}" y2="{place}" stroke="{GRID}"/>'
            f'<text x="{_LEFT - 8}" y="{place + 4}" text-anchor="end" fill="{MUTED}">{number(tick)}</text>'
        )
    levels = sorted({resource for curve in drawn.values() for resource, _ in curve})[-8:]
    parts += [
        f'<text x="{x(level)}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle" fill="{MUTED}">{level:,}</text>'
        for level in levels
    ]
    for trial in [*(other for other in drawn if other != best.trial), best.trial]:
        winner = trial == best.trial
        color, width, opacity = (BEST, 2.5, 1) if winner else (_BLUE, 1.2, 0.45)
        points = " ".join(f"{x(resource)},{y(value)}" for resource, value in drawn[trial])
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}" opacity="{opacity}"/>'
        )
        last = drawn[trial][-1]
        parts.append(
            f'<circle cx="{x(last[0])}" cy="{y(last[1])}" r="{4 if winner else 3}" fill="{color}" opacity="{opacity}"/>'
        )
    better = "smaller" if spec.mode == "min" else "larger"
    words = f"{spec.name} ({better} is better) by units of training; orange: trial {best.trial}, the best"
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 10}" fill="{MUTED}">{escape(words)}</text></svg>')
    return "".join(parts)
