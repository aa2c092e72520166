"""Ray Tune's AsyncHyperBandScheduler called directly: ``on_trial_result``, ``on_trial_add`` for a new trial.

It stops instead of promoting, and draws no parameters here: less work than ours, not more.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

from ray import __version__
from ray.tune.schedulers import AsyncHyperBandScheduler
from workload import ETA, LEVELS, SLOTS, Job, answer, arguments, level_above, play, resident, summary


def main() -> None:
    given = arguments(__doc__).parse_args()
    before = resident()
    scheduler = AsyncHyperBandScheduler(
        time_attr="epoch", metric="loss", mode="min", max_t=LEVELS[-1], grace_period=1, reduction_factor=ETA
    )
    numbers = itertools.count()

    def new() -> Job:
        number = next(numbers)
        trial = SimpleNamespace(trial_id=f"{number:08d}")
        scheduler.on_trial_add(None, trial)
        return Job(number, 0, LEVELS[0], trial)

    def tell(job: Job, loss: float) -> list[Job]:
        decision = scheduler.on_trial_result(None, job.payload, {"loss": loss, "epoch": job.target})
        above = level_above(job.target)
        if decision == "CONTINUE" and above is not None:
            return [Job(job.trial, job.target, above, job.payload)]
        scheduler.on_trial_remove(None, job.payload)
        return [new()]

    spent = play(lambda: [new() for _ in range(SLOTS)], tell, given.results)
    answer(summary(spent, next(numbers), before) | {"version": f"ray {__version__}"})


if __name__ == "__main__":
    main()
