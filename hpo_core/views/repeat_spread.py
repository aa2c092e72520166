"""The single values of a result with seed repeats, and their spread, as people see them."""

from __future__ import annotations

import msgspec

from hpo_core.model.events import JobCompleted
from hpo_core.model.seed_repeats import spread
from hpo_core.state import Incumbent, StudyState
from hpo_core.views.formatting import number


class RepeatSpread(msgspec.Struct, frozen=True):
    """One metric over the seed repeats of one result."""

    values: tuple[float, ...]
    """By number of the repeat."""
    std: float | None
    """Sample standard deviation; None where a value is not finite."""

    @property
    def short(self) -> str:
        """``± 0.013 over 3 repeats``."""
        around = "" if self.std is None else f"± {number(self.std, 3)} "
        return f"{around}over {len(self.values)} repeats"

    @property
    def words(self) -> str:
        """``± 0.013 over 3 repeats (0.31, 0.3, 0.284)``."""
        return f"{self.short} ({', '.join(number(value, 5) for value in self.values)})"


def repeat_spread(result: JobCompleted, metric: str) -> RepeatSpread | None:
    """Of one metric of a result; None without seed repeats, or where a repeat has no such value."""
    if result.repeats is msgspec.UNSET or not all(metric in one for one in result.repeats):
        return None
    return RepeatSpread(tuple(one[metric] for one in result.repeats), spread(result.repeats, metric))


def spread_of(state: StudyState, member: Incumbent | None) -> RepeatSpread | None:
    """Of the first metric of the incumbent or a member of the front."""
    if member is None or state.spec is None:
        return None
    for result in state.trials[member.trial].all_results:
        if result.resource == member.resource:
            return repeat_spread(result, state.spec.metric.name)
    return None
