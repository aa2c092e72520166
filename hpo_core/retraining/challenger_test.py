"""Promotion test: is a challenger better than the champion by more than the noise of seeds?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import msgspec

from hpo_core.model.errors import SpecError


class Verdict(msgspec.Struct, frozen=True):
    """Result of a one-sided Welch test over repeated seeds; all values are losses (smaller is better)."""

    champion: tuple[float, ...]
    challenger: tuple[float, ...]
    margin: float
    level: float
    """Significance level, after Bonferroni's correction for several challengers."""
    p_value: float

    @property
    def gain(self) -> float:
        """Champion's mean loss minus the challenger's; positive where the challenger is better."""
        return fmean(self.champion) - fmean(self.challenger)

    @property
    def wins(self) -> bool:
        """Whether the challenger is significantly better."""
        return self.p_value < self.level

    def words(self, metric: str, sign: float) -> str:
        """The result in one line, in the user's metric.

        Args:
            metric: name of the metric.
            sign: factor that turns a loss into the metric: 1 for ``min``, -1 for ``max``.
        """
        sides = [
            f"{fmean(values) * sign:.5g} ± {stdev(values):.2g} ({len(values)} seeds)"
            for values in (self.challenger, self.champion)
        ]
        more = f" by more than {self.margin:g}" if self.margin else ""
        return (
            f"mean {metric} on the new data: challenger {sides[0]}, champion {sides[1]}; the challenger is "
            f"{'better' if self.wins else 'not proven better'}{more}: one-sided Welch test p = {self.p_value:.2g}, "
            f"level {self.level:g}"
        )


def promotion_test(
    champion: Sequence[float],
    challenger: Sequence[float],
    *,
    margin: float = 0.0,
    level: float = 0.05,
    challengers: int = 1,
) -> Verdict:
    """Test whether the challenger's mean loss is smaller than the champion's by more than ``margin``.

    Welch's t test (unequal variances, Welch 1947), one-sided. If neither side has any spread, the difference decides.

    Args:
        champion: losses of its repeats, at least two, each trained with another seed.
        challenger: losses of its repeats, likewise.
        margin: least gain that is worth a change, in units of the metric.
        level: significance level, from 0 to 1.
        challengers: number of challengers of which this is the best one; the level is divided by it (Bonferroni).

    Raises:
        SpecError: fewer than two repeats, or a loss that is not finite.
    """
    from scipy.stats import ttest_ind

    for name, values in (("champion", champion), ("challenger", challenger)):
        if len(values) < 2 or not all(map(math.isfinite, values)):
            raise SpecError(
                f"The losses of the {name} are {list(values)}; the test needs at least two, all finite. "
                "Nothing can be said from fewer: train it with more seeds."
            )
    raised = [loss + margin for loss in challenger]
    if len(set(champion)) == len(set(raised)) == 1:
        p_value = 0.0 if raised[0] < champion[0] else 1.0
    else:
        p_value = float(ttest_ind(raised, list(champion), equal_var=False, alternative="less").pvalue)
    return Verdict(tuple(champion), tuple(challenger), margin, level / challengers, p_value)
