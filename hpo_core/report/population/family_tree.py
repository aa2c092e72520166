"""The family tree of a population: who continued whose training, and the path to the winner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpo_core.report.series import Series
from hpo_core.report.style import BEST, FAILED, Figure, axis, layout, level_color, text
from hpo_core.views.formatting import number
from hpo_core.views.lineage import Birth, Lineage

TREE = 6_000
"""With more trials only those with descendants in the last generation are drawn."""
_DARK = level_color(2, 3)


def lineage_tree(series: Series) -> Figure | None:
    """One line from each parent to its child; None where no trial has a parent."""
    lineage = series.lineage
    if lineage is None or not lineage.children:
        return None
    survivors = lineage.survivors()
    best = series.study.best
    winner = lineage.ancestry(best.trial) if best is not None else []
    many = len(lineage.births) > TREE
    path = set(winner)
    others = [] if many else [b for b in lineage.births if b.trial not in survivors and b.trial not in path]
    living = [lineage.births[number_] for number_ in sorted(survivors - path)]
    members = 1 + max(birth.member for birth in lineage.births)
    thick = 2.4 if members <= 60 else 1.2
    data = []
    if others:
        data.append(
            _branches(
                series, lineage, others, name="no descendants at the end", color="#c3cad2", width=0.45 * thick, size=4
            )
        )
    if living:
        data.append(
            _branches(series, lineage, living, name="lives on in the last generation", color=_DARK, width=thick, size=6)
        )
    crosses = [
        b for b in lineage.births if (b.trial in survivors or not many) and series.trials[b.trial].abandoned is not None
    ]
    if crosses:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"abandoned ({len(crosses)})",
                "hoverinfo": "text",
                "x": [b.generation for b in crosses],
                "y": [b.member for b in crosses],
                "text": [_words(series, b) for b in crosses],
                "marker": {"symbol": "x", "size": 8, "color": FAILED},
            }
        )
    if best is not None:
        births = [lineage.births[number_] for number_ in winner]
        data.append(
            _branches(
                series, lineage, births, name=f"path to trial {best.trial}, the best", color=BEST, width=3.5, size=8
            )
        )
    last = lineage.generations() - 1
    roots = {birth.trial for birth in lineage.births if birth.parent is None}
    children = len(lineage.births) - len(roots)
    few = f" Of {len(lineage.births):,} trials only those that live on are drawn." if many else ""
    moved = sum(
        birth.parent is not None and birth.member != lineage.births[birth.parent].member for birth in lineage.births
    )
    caption = (
        f"Each dot is a trial, each line the training it continues; {moved:,} of {children:,} children went on from "
        f"another member. Training that {len(roots & survivors):,} of {len(roots):,} first trials began lives on in "
        f"generation {last}.{few}"
    )
    up = axis("member", range=[members - 0.4, -0.6])
    if members <= 12:
        up |= {"tickvals": list(range(members))}
    shape = layout(
        min(900, 200 + 18 * members),
        xaxis=axis("generation", range=[-0.4, last + 0.4], showgrid=False),
        yaxis=up | {"showgrid": False},
    )
    return Figure("lineage", "Lineage", caption, data, shape, min_width=min(1100, 26 * last))


def _branches(
    series: Series, lineage: Lineage, births: Iterable[Birth], *, name: str, color: str, width: float, size: int
) -> dict[str, Any]:
    """The births as dots, each joined to its parent."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    words: list[str] = []
    sizes: list[int] = []
    for birth in births:
        if birth.parent is not None:
            parent = lineage.births[birth.parent]
            xs.append(parent.generation)
            ys.append(parent.member)
            words.append("")
            sizes.append(0)
        xs += [birth.generation, None]
        ys += [birth.member, None]
        words += [_words(series, birth), ""]
        sizes += [size, 0]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": xs,
        "y": ys,
        "text": words,
        "hoverinfo": "text",
        "line": {"color": color, "width": width},
        "marker": {"color": color, "size": sizes, "opacity": 1, "line": {"width": 0}},
    }


def _words(series: Series, birth: Birth) -> str:
    trial = series.trials[birth.trial]
    value = series.final(trial)
    state = number(value) if value is not None else "diverged" if trial.results else trial.status
    if value is None and trial.results and trial.all_results[-1].losses:
        state = f"no {text(series.metric, 24)}"  # a fitness may have gaps
    lines = [f"<b>trial {birth.trial}</b>, generation {birth.generation}, member {birth.member}: {state}"]
    if birth.initiator is not None:
        met = "nobody" if birth.opponent is None else f"trial {birth.opponent}"
        lines.append(f"trial {birth.initiator} met {met}")
    if birth.parent is not None:
        before = series.trials[birth.parent].params
        lines.append(f"goes on from trial {birth.parent}")
        lines += [
            f"{text(name, 24)}: {_value(before.get(name))} → {_value(birth.params.get(name))}"
            for name in birth.explored[:8]
        ]
    return "<br>".join(lines)


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return number(value) if isinstance(value, float) else text(value, 16)
