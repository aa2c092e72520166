"""Stragglers and dropped jobs, as in the simulations of ASHA (Li et al., MLSys 2020, A.1)."""

from __future__ import annotations

import math

import msgspec

from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong. All draws are keyed by (seed, trial, attempt), so a run repeats exactly.

    The paper does not say what becomes of a dropped job. ``retry`` is what this system does with a worker that dies:
    noticed at that moment (:attr:`~hpo_core.model.trial.Outcome.LOST`), the job is granted again before all others and
    starts from its last checkpoint. ``abandon`` is the harsher reading: the trial is abandoned with its job
    (:attr:`~hpo_core.model.trial.Outcome.ERROR`), and ranks last in the rung it was heading for.
    """

    stragglers: float = 0.0
    """Durations are multiplied by ``1 + |z|``, ``z`` normal with this standard deviation."""
    drops: float = 0.0
    """Probability that a job is dropped, in each time unit that it runs."""
    time_unit: float = 1.0
    """Seconds of a time unit; in the paper, what one unit of resource takes."""
    drop: str = "retry"
    """``retry`` or ``abandon``."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, rule, good in (
            ("stragglers", self.stragglers, "be a standard deviation, 0 or more", 0 <= self.stragglers < math.inf),
            ("drops", self.drops, "be a probability from 0 to below 1", 0 <= self.drops < 1),
            ("time_unit", self.time_unit, "be a number of seconds above 0", 0 < self.time_unit < math.inf),
            ("drop", self.drop, "be 'retry' or 'abandon'", self.drop in ("retry", "abandon")),
        ):
            if not good:
                raise SpecError(f"Simulated faults: {name} = {value!r} must {rule}.")

    def stretched(self, job: Job, seconds: float) -> float:
        """The duration of an attempt that would take ``seconds``."""
        if not self.stragglers:
            return seconds
        z = Stream(self.seed, f"straggler/{job.trial}", job.attempt).normal()
        return seconds * (1.0 + abs(self.stragglers * z))

    def dropped_after(self, job: Job) -> float:
        """Seconds after its start at which the attempt is dropped, if it still runs then.

        Exponential: a job that runs ``t`` time units survives with probability ``(1 - drops) ** t``, whole or not.
        """
        if not self.drops:
            return math.inf
        u = Stream(self.seed, f"drop/{job.trial}", job.attempt).uniform()
        return self.time_unit * math.log1p(-u) / math.log1p(-self.drops)


NO_FAULTS = Faults()
