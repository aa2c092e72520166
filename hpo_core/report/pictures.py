"""Pictures of a search and of a retraining's decision as plain SVG, for any page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean

from hpo_core.report.style import BEST, BLUE, FONT, GRID, INK, MUTED, round_ticks, scale
from hpo_core.retraining.model_registry import Decision
from hpo_core.study import Study
from hpo_core.views.formatting import number

MOST_LINES = 200
"""Trials drawn at most: those that were trained furthest."""
_DARK = (
    '<style>@media(prefers-color-scheme:dark){[fill="#fff"]{fill:#182029}'
    f'[fill="{INK}"]{{fill:#e3e8ee}}[fill="{MUTED}"]{{fill:#9aa6b2}}[fill="{BLUE}"]{{fill:#6cb0ff}}'
    f'[stroke="{INK}"]{{stroke:#e3e8ee}}[stroke="{GRID}"]{{stroke:#2a3541}}[stroke="{BLUE}"]{{stroke:#6cb0ff}}'
    "}</style>"
)
_WIDTH = 760


def search_picture(study: Study) -> str | None:
    """A line for each trial, its metric by units of training; None before there is a finite result."""
    curves = {
        trial.number: [
            (result.resource, study.metric_value(result.loss)) for result in trial.results if result.loss is not None
        ]
        for trial in study.state.trials
    }
    kept = sorted((trial for trial, curve in curves.items() if curve), key=lambda n: (-curves[n][-1][0], n))
    drawn = {trial: curves[trial] for trial in kept[:MOST_LINES]}
    best = study.best
    if not drawn or best is None:
        return None
    drawn |= {best.trial: curves[best.trial]}
    spec = study.spec.metric
    values = scale([value for curve in drawn.values() for _, value in curve], maximize=spec.mode == "max")
    low, high = _padded(*values.ends)
    furthest = max(curve[-1][0] for curve in drawn.values())
    left, right, top, bottom = 76, _WIDTH - 20, 20, 290

    def x(resource: int) -> float:
        return round(left + resource / furthest * (right - left), 1)

    def y(place: float) -> float:
        return round(bottom - (place - low) / (high - low) * (bottom - top), 1)

    parts = []
    for place, words in zip(*values.ticks(), strict=True):
        parts.append(
            f'<line x1="{left}" x2="{right}" y1="{y(place)}" y2="{y(place)}" stroke="{GRID}"/>'
            f'<text x="{left - 8}" y="{y(place) + 4}" text-anchor="end" fill="{MUTED}">{words}</text>'
        )
    levels = sorted({resource for curve in drawn.values() for resource, _ in curve})[-8:]
    parts += [
        f'<text x="{x(level)}" y="{bottom + 18}" text-anchor="middle" fill="{MUTED}">{level:,}</text>'
        for level in levels
    ]
    for trial in [*(other for other in drawn if other != best.trial), best.trial]:
        winner = trial == best.trial
        color, width, opacity = (BEST, 2.5, 1) if winner else (BLUE, 1.2, 0.45)
        places = [(x(resource), y(values.place(value))) for resource, value in drawn[trial]]
        points = " ".join(f"{across},{up}" for across, up in places)
        across, up = places[-1]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}" opacity="{opacity}"/>'
            f'<circle cx="{across}" cy="{up}" r="{4 if winner else 3}" fill="{color}" opacity="{opacity}"/>'
        )
    words = f"{spec.name} ({_better(spec.mode)}) by units of training; orange: trial {best.trial}, the best"
    parts.append(f'<text x="{left}" y="{bottom + 40}" fill="{MUTED}">{escape(words)}</text>')
    return _svg(bottom + 50, parts)


def decision_picture(decision: Decision) -> str:
    """A dot for each seed of both models, and a line at each mean."""
    card = decision.challenger
    values = [loss * card.sign for _, losses in decision.rows for loss in losses]
    low, high = _padded(min(values), max(values))
    left, right, top, row_height = 220, _WIDTH - 24, 46, 46
    bottom = top + row_height * len(decision.rows)

    def x(value: float) -> float:
        return round(left + (value - low) / (high - low) * (right - left), 1)

    parts = [f'<text x="12" y="24" font-size="15" font-weight="600">{escape(decision.headline())}</text>']
    parts += [
        f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{top}" y2="{bottom}" stroke="{GRID}"/>'
        f'<text x="{x(tick)}" y="{bottom + 17}" text-anchor="middle" fill="{MUTED}">{number(tick)}</text>'
        for tick in round_ticks(low, high)
    ]
    for row, (label, losses) in enumerate(decision.rows):
        middle = top + row_height * (row + 0.5)
        color = BEST if label.startswith("challenger") else BLUE
        opacity = 0.45 if "own data" in label else 0.8
        mean = x(fmean(losses) * card.sign)
        parts.append(f'<text x="{left - 12}" y="{middle + 4}" text-anchor="end">{escape(label)}</text>')
        parts += [
            f'<circle cx="{x(loss * card.sign)}" cy="{middle}" r="6" fill="{color}" opacity="{opacity}"/>'
            for loss in losses
        ]
        parts.append(
            f'<line x1="{mean}" x2="{mean}" y1="{middle - 15}" y2="{middle + 15}" stroke="{INK}" stroke-width="2"/>'
        )
    p_value = f"p = {decision.verdict.p_value:.2g}, level {decision.verdict.level:g}"
    words = f"{card.metric} ({_better(card.mode)}): a dot per seed, a line per mean; {p_value}"
    parts.append(f'<text x="{left}" y="{bottom + 37}" fill="{MUTED}">{escape(words)}</text>')
    return _svg(bottom + 46, parts)


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return low - pad, high + pad


def _better(mode: str) -> str:
    return f"{'smaller' if mode == 'min' else 'larger'} is better"


def _svg(height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'font-family="{escape(FONT)}" font-size="13" fill="{INK}">{_DARK}'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
    )
