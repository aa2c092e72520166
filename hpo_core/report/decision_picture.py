"""The picture of a retraining's decision: a dot for each seed, a line for each mean. Plain SVG, for any page."""

from __future__ import annotations

from html import escape
from statistics import fmean

from hpo_core.report.scale import round_ticks
from hpo_core.report.style import BEST, DARK_PICTURE, FONT, GRID, INK, MUTED
from hpo_core.retraining.model_registry import Decision
from hpo_core.views.formatting import number

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 760, 220, 24, 46, 46
_BLUE = "#1c6dd0"


def picture(decision: Decision) -> str:
    """The SVG as text."""
    sign = decision.sign
    values = [loss * sign for _, losses in decision.rows for loss in losses]
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    low, high = low - pad, high + pad
    bottom = _TOP + _ROW * len(decision.rows)

    def x(value: float) -> float:
        return round(_LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 46}" width="{_WIDTH}" '
        f'font-family="{escape(FONT)}" font-size="13" fill="{INK}">',
        f'{DARK_PICTURE}<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="12" y="24" font-size="15" font-weight="600">{escape(decision.headline())}</text>',
    ]
    parts += [
        f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{_TOP}" y2="{bottom}" stroke="{GRID}"/>'
        f'<text x="{x(tick)}" y="{bottom + 17}" text-anchor="middle" fill="{MUTED}">{number(tick)}</text>'
        for tick in round_ticks(low, high)
    ]
    for row, (label, losses) in enumerate(decision.rows):
        middle = _TOP + _ROW * (row + 0.5)
        color = BEST if label.startswith("challenger") else _BLUE
        opacity = 0.45 if "own data" in label else 0.8
        mean = x(fmean(losses) * sign)
        parts.append(f'<text x="{_LEFT - 12}" y="{middle + 4}" text-anchor="end">{escape(label)}</text>')
        parts += [
            f'<circle cx="{x(v * sign)}" cy="{middle}" r="6" fill="{color}" opacity="{opacity}"/>' for v in losses
        ]
        parts.append(
            f'<line x1="{mean}" x2="{mean}" y1="{middle - 15}" y2="{middle + 15}" stroke="{INK}" stroke-width="2"/>'
        )
    better = "smaller" if decision.mode == "min" else "larger"
    p_value = f"p = {decision.verdict.p_value:.2g}, level {decision.verdict.level:g}"
    parts.append(
        f'<text x="{_LEFT}" y="{bottom + 37}" fill="{MUTED}">{escape(decision.metric)} ({better} is better): a dot per '
        f"seed, a line per mean; {p_value}</text></svg>"
    )
    return "".join(parts)
