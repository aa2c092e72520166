"""Drift check: compares the champion's losses per example on its own data and on new data."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hpo_core.model.errors import SpecError

MIN_EXAMPLES = 20
"""Least number of examples on each side; with fewer the test says nothing."""


class Drift(msgspec.Struct, frozen=True):
    """Result of a two-sample Kolmogorov-Smirnov test of the champion's losses per example."""

    statistic: float
    """Largest distance between the two distribution functions: 0 (same) to 1 (no overlap)."""
    p_value: float
    limit: float
    level: float
    before: int
    """Number of examples of the champion's own data."""
    now: int
    """Number of examples of the new data."""

    @property
    def drifted(self) -> bool:
        """Whether the distance reaches ``limit`` and is significant at ``level``."""
        return self.statistic >= self.limit and self.p_value < self.level

    def words(self) -> str:
        """The result in one line."""
        large = "at or above" if self.statistic >= self.limit else "below"
        sure = "below" if self.p_value < self.level else "not below"
        return (
            f"{'drift' if self.drifted else 'no drift'}: Kolmogorov–Smirnov D = {self.statistic:.3f} is {large} "
            f"{self.limit:g}, p = {self.p_value:.2g} {sure} {self.level:g} "
            f"({self.before} examples before, {self.now} now)"
        )


def check_drift(before: Sequence[float], now: Sequence[float], *, limit: float = 0.2, level: float = 0.01) -> Drift:
    """Test whether the champion's losses per example differ between its own data and the new data.

    Both distance and significance must show it: with many examples any difference is significant, with few any
    distance is large.

    Args:
        before: finite losses on the champion's validation data.
        now: finite losses on the new data.
        limit: least distance D that counts as drift.
        level: significance level.

    Raises:
        SpecError: fewer than ``MIN_EXAMPLES`` on a side.
    """
    from scipy.stats import ks_2samp

    if min(len(before), len(now)) < MIN_EXAMPLES:
        raise SpecError(
            f"The drift check has {len(before)} losses of the champion's own data and {len(now)} of the new data; it "
            f"needs {MIN_EXAMPLES} of each. Return one loss per example from the evaluation function."
        )
    found = ks_2samp(list(before), list(now))
    return Drift(float(found.statistic), float(found.pvalue), limit, level=level, before=len(before), now=len(now))
