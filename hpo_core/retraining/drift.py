"""Has the data changed under the champion? Its losses per example, before and now, have the answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hpo_core.model.errors import SpecError

FEWEST = 20
"""Examples on each side; with fewer no test can tell anything."""


class Drift(msgspec.Struct, frozen=True):
    """What a two-sample Kolmogorov-Smirnov test says of the champion's losses per example."""

    statistic: float
    """The largest distance between the two distribution functions, from 0 (same) to 1 (no overlap)."""
    p_value: float
    limit: float
    level: float
    before: int
    """Examples of the champion's own data."""
    now: int
    """Examples of the new data."""

    @property
    def drifted(self) -> bool:
        """Large enough to matter, and no accident."""
        return self.statistic >= self.limit and self.p_value < self.level

    def words(self) -> str:
        large = "at or above" if self.statistic >= self.limit else "below"
        sure = "below" if self.p_value < self.level else "not below"
        return (
            f"{'drift' if self.drifted else 'no drift'}: Kolmogorov–Smirnov D = {self.statistic:.3f} is {large} "
            f"{self.limit:g}, p = {self.p_value:.2g} {sure} {self.level:g} "
            f"({self.before} examples before, {self.now} now)"
        )


def check_drift(before: Sequence[float], now: Sequence[float], *, limit: float = 0.2, level: float = 0.01) -> Drift:
    """Compare the champion's losses per example on its own data and on the new data.

    Two conditions, for with many examples any difference is significant and with few any statistic is large.

    Args:
        before: finite losses of examples that the champion was validated with.
        now: those of the new data.
        limit: D from which on a drift matters.
        level: of significance.

    Raises:
        SpecError: too few examples.
    """
    from scipy.stats import ks_2samp

    if min(len(before), len(now)) < FEWEST:
        raise SpecError(
            f"The drift check has {len(before)} losses of the champion's own data and {len(now)} of the new data; it "
            f"needs {FEWEST} of each. Return one loss per example from the evaluation function."
        )
    found = ks_2samp(list(before), list(now))
    return Drift(float(found.statistic), float(found.pvalue), limit, level, len(before), len(now))
