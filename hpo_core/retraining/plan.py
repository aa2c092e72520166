"""What is done next: retrain along the record, tune again, or neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from hpo_core.retraining.drift import Drift
from hpo_core.retraining.promotion_test import judge

Branch = Literal["retrain", "tune"]


class Step(msgspec.Struct, frozen=True):
    """A branch and why."""

    branch: Branch
    reason: str


def first_step(drift: Drift) -> Step:
    """Without drift the recorded parameters are still the right ones; with drift they are looked for again."""
    if drift.drifted:
        return Step("tune", "tuned again: the parameters were chosen for other data than these")
    return Step("retrain", "the champion's parameters are trained again on the new data")


def is_good_enough(own: Sequence[float], retrained: Sequence[float], *, level: float = 0.05) -> bool:
    """Whether parameters that were trained again on new data reach what they reached on their own data.

    They do unless they are significantly worse (one-sided Welch test of the losses over seeds).

    Args:
        own: losses of the champion's repeats on its own data, when it became champion.
        retrained: losses of the same parameters trained on the new data, evaluated there.
    """
    return not judge(retrained, own, level=level).wins


def second_step(own: Sequence[float], retrained: Sequence[float], *, level: float = 0.05) -> Step | None:
    """After retraining: None where it was good enough."""
    if is_good_enough(own, retrained, level=level):
        return None
    return Step(
        "tune",
        f"trained again, the champion's parameters are significantly worse on the new data than they were on their "
        f"own (one-sided Welch test, level {level:g})",
    )
