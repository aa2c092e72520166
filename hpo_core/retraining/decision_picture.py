"""Picture of a retraining's decision, for Prefect and MLflow."""

from __future__ import annotations

from hpo_core.report.pictures import DotRow, dots_picture
from hpo_core.report.style import BEST, BLUE
from hpo_core.retraining.model_registry import Decision


def decision_picture(decision: Decision) -> str:
    """A dot for each seed of both models, and a line at each mean."""
    card, verdict = decision.challenger, decision.verdict
    rows = [
        DotRow(
            label,
            [loss * card.sign for loss in losses],
            BEST if label.startswith("challenger") else BLUE,
            0.45 if "own data" in label else 0.8,
        )
        for label, losses in decision.rows
    ]
    better = "smaller" if card.mode == "min" else "larger"
    words = f"{card.metric} ({better} is better): a dot per seed, a line per mean; p = {verdict.p_value:.2g}, level "
    return dots_picture(decision.headline(), rows, f"{words}{verdict.level:g}")
