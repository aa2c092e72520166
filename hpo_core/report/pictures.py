"""Pictures of a search and of a retraining's decision as plain SVG, for any page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from hpo_core.report.style import BEST, BLUE, FONT, GRID, INK, MUTED, Scale, round_ticks, scale
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
_BACKGROUND = '<rect width="100%" height="100%" fill="#fff"/>'
_WIDTH = 760
_LEFT, _RIGHT = 76, _WIDTH - 20


_NEUTRAL = {INK: "#808b96", MUTED: "#808b96", GRID: "#80808040", BLUE: "#4a90dc"}
"""Colours that can be read on white and on dark."""


def search_picture(study: Study, *, themed: bool = True) -> str | None:
    """Picture of a search; None before there is a finite result.

    With several metrics: results and the Pareto front in the first two. Where trials report once: their values in the
    order in which they ended. Else a line for each trial, its metric by units of training.

    Args:
        themed: whether it has a background, dark where the system is; else it has none, and colours that can be read on
            any, for a page whose theme is its own.
    """
    if study.best is None:
        return None
    if len(study.spec.objectives) > 1:
        svg = _front_picture(study)
    elif all(len(trial.results) <= 1 for trial in study.state.trials):
        svg = _history_picture(study)
    else:
        svg = _curves_picture(study)
    if themed:
        return svg
    svg = svg.replace(_DARK, "").replace(_BACKGROUND, "")
    for color, neutral in _NEUTRAL.items():
        svg = svg.replace(f'"{color}"', f'"{neutral}"')
    return svg


def _curves_picture(study: Study) -> str:
    curves = {
        trial.number: [
            (result.resource, study.metric_value(result.loss)) for result in trial.results if result.loss is not None
        ]
        for trial in study.state.trials
    }
    kept = sorted((trial for trial, curve in curves.items() if curve), key=lambda n: (-curves[n][-1][0], n))
    best = study.best
    assert best is not None
    drawn = {trial: curves[trial] for trial in [*kept[:MOST_LINES], best.trial]}
    spec = study.spec.metric
    up = _Axis.of_values([value for curve in drawn.values() for _, value in curve], spec.mode, top=20, bottom=290)
    furthest = max(curve[-1][0] for curve in drawn.values())

    def x(resource: int) -> float:
        return round(_LEFT + resource / furthest * (_RIGHT - _LEFT), 1)

    parts = up.lines()
    levels = sorted({resource for curve in drawn.values() for resource, _ in curve})[-8:]
    parts += [_below(x(level), up.bottom, f"{level:,}") for level in levels]
    for trial in [*(other for other in drawn if other != best.trial), best.trial]:
        winner = trial == best.trial
        color, width, opacity = (BEST, 2.5, 1) if winner else (BLUE, 1.2, 0.45)
        places = [(x(resource), up.at(value)) for resource, value in drawn[trial]]
        points = " ".join(f"{across},{height}" for across, height in places)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}" opacity="{opacity}"/>'
        )
        parts.append(_dot(*places[-1], color, 4 if winner else 3, opacity))
    words = f"{spec.name} ({_better(spec.mode)}) by units of training; orange: trial {best.trial}, the best"
    return _svg(up.bottom + 50, [*parts, _words(up.bottom, words)])


def _history_picture(study: Study) -> str:
    ended = sorted((one for trial in study.state.trials for one in trial.results), key=lambda one: one.ended)
    results = [(one, one.loss, study.metric_value(one.loss)) for one in ended if one.loss is not None]
    spec, best = study.spec.metric, study.best
    assert best is not None
    up = _Axis.of_values([value for _, _, value in results], spec.mode, top=20, bottom=290)
    step = (_RIGHT - _LEFT) / len(results)
    parts, line, lowest = up.lines(), "", float("inf")
    for place, (result, loss, value) in enumerate(results):
        across, height = round(_LEFT + (place + 0.5) * step, 1), up.at(value)
        winner = result.trial == best.trial
        if len(results) <= 4 * MOST_LINES or winner:
            parts.append(_dot(across, height, BEST if winner else BLUE, 5 if winner else 3, 1 if winner else 0.6))
        if loss < lowest and not result.infeasible:
            line += f"H{across}V{height}" if line else f"M{across},{height}"
            lowest = loss
    parts.insert(0, f'<path d="{line}H{_RIGHT}" fill="none" stroke="{BEST}" stroke-width="1.5"/>')
    every = -(-len(results) // 10)
    parts += [
        _below(round(_LEFT + (place + 0.5) * step, 1), up.bottom, f"{place + 1:,}")
        for place in range(every - 1, len(results), every)
    ]
    words = f"{spec.name} ({_better(spec.mode)}) of each trial as they ended; orange: trial {best.trial}, the best"
    return _svg(up.bottom + 50, [*parts, _words(up.bottom, words)])


def _front_picture(study: Study) -> str:
    first, second = study.spec.objectives[:2]
    front = [member.losses for member in study.state.front]
    others = [
        result.losses
        for trial in study.state.trials
        for result in trial.results
        if result.losses and not result.infeasible
    ]
    others = others[:: -(-len(others) // (4 * MOST_LINES)) or 1]
    every = [*others, *front]
    up = _Axis.of_values([losses[0] * first.sign for losses in every], first.mode, top=20, bottom=290)
    along = _Axis.of_values([losses[1] * second.sign for losses in every], second.mode, top=_RIGHT, bottom=_LEFT)
    parts = up.lines()
    parts += [_below(along.place(tick), up.bottom, words) for tick, words in zip(*along.scale.ticks(), strict=True)]
    parts += [_dot(along.at(b * second.sign), up.at(a * first.sign), BLUE, 3, 0.5) for a, b, *_ in others]
    parts += [_dot(along.at(b * second.sign), up.at(a * first.sign), BEST, 5, 1) for a, b, *_ in front]
    parts.append(_words(up.bottom, f"{first.name} ({_better(first.mode)}) by {second.name} ({_better(second.mode)});"))
    parts.append(_words(up.bottom + 18, "orange: the Pareto front"))
    return _svg(up.bottom + 68, parts)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where values lie between two ends of a picture, in pixels."""

    scale: Scale
    low: float
    high: float
    top: int
    bottom: int

    @classmethod
    def of_values(cls, values: Sequence[float], mode: str, *, top: int, bottom: int) -> _Axis:
        found = scale(values, maximize=mode == "max")
        return cls(found, *_padded(*found.ends), top, bottom)

    def place(self, tick: float) -> float:
        return round(self.bottom - (tick - self.low) / (self.high - self.low) * (self.bottom - self.top), 1)

    def at(self, value: float) -> float:
        return self.place(self.scale.place(value))

    def lines(self) -> list[str]:
        return [
            f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{self.place(tick)}" y2="{self.place(tick)}" stroke="{GRID}"/>'
            f'<text x="{_LEFT - 8}" y="{self.place(tick) + 4}" text-anchor="end" fill="{MUTED}">{words}</text>'
            for tick, words in zip(*self.scale.ticks(), strict=True)
        ]


def _dot(across: float, height: float, color: str, radius: int, opacity: float) -> str:
    return f'<circle cx="{across}" cy="{height}" r="{radius}" fill="{color}" opacity="{opacity}"/>'


def _below(across: float, bottom: int, words: str) -> str:
    return f'<text x="{across}" y="{bottom + 18}" text-anchor="middle" fill="{MUTED}">{words}</text>'


def _words(bottom: int, words: str) -> str:
    return f'<text x="{_LEFT}" y="{bottom + 40}" fill="{MUTED}">{escape(words)}</text>'


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
        parts += [_dot(x(loss * card.sign), middle, color, 6, opacity) for loss in losses]
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
        f"{_BACKGROUND}{''.join(parts)}</svg>"
    )
