"""Chooses the next branch of a retraining: train again with the same parameters, or tune again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from hpo_core.retraining.challenger_test import promotion_test
from hpo_core.retraining.drift import Drift
from hpo_core.retraining.example_noise import ExampleNoise

Branch = Literal["retrain", "tune"]


class Step(msgspec.Struct, frozen=True):
    """A branch and the reason for it."""

    branch: Branch
    reason: str


def branch_after_drift_check(drift: Drift) -> Step:
    """Without drift the champion's parameters are trained again; with drift new ones are searched."""
    if drift.drifted:
        return Step("tune", "tuned again: the parameters were chosen for other data than these")
    return Step("retrain", "the champion's parameters are trained again on the new data")


def is_good_enough(
    champion: Sequence[float], retrained: Sequence[float], *, noise: ExampleNoise | None = None, level: float = 0.05
) -> bool:
    """Whether the champion's parameters, trained again, are as good as the champion itself on the same data.

    They are unless they are significantly worse (one-sided Welch test over seeds and examples, as in
    :func:`~hpo_core.retraining.challenger_test.promotion_test`). The champion's losses on its own data say nothing
    here: data of another day are harder or easier for every model, and harder ones would begin a search each time.

    Args:
        champion: losses of the champion's repeats on the new data.
        retrained: losses of the same parameters, trained and evaluated on the new data.
        noise: of the draw of the examples, where it is known.
        level: significance level.
    """
    return not promotion_test(retrained, champion, noise=noise, level=level).wins


def branch_after_retraining(
    champion: Sequence[float], retrained: Sequence[float], *, noise: ExampleNoise | None = None, level: float = 0.05
) -> Step | None:
    """Tune after a retraining that was not good enough; None where it was."""
    if is_good_enough(champion, retrained, noise=noise, level=level):
        return None
    return Step(
        "tune",
        f"tuned again: trained on the new data, the champion's parameters are significantly worse there than the "
        f"champion itself (one-sided Welch test, level {level:g})",
    )
