"""Syne Tune 0.16's AsynchronousSuccessiveHalving called directly (it stops; promotion was removed in 0.15)."""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import logging
import warnings

from workload import ETA, LEVELS, SLOTS, Job, answer, arguments, level_above, play, resident, summary

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

from syne_tune.backend.trial_status import Trial  # noqa: E402
from syne_tune.config_space import choice, lograndint, loguniform  # noqa: E402
from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving  # noqa: E402


def main() -> None:
    given = arguments(__doc__).parse_args()
    before = resident()
    scheduler = AsynchronousSuccessiveHalving(
        {
            "learning_rate": loguniform(1e-4, 1.0),
            "width": lograndint(8, 256),
            "optimizer": choice(["sgd", "adam"]),
        },
        metric="loss",
        time_attr="epoch",
        max_t=LEVELS[-1],
        grace_period=LEVELS[0],
        reduction_factor=ETA,
        random_seed=1,
    )
    numbers = itertools.count()
    day = datetime.datetime(2026, 1, 1)

    def new() -> Job:
        suggestion = scheduler.suggest()
        trial = Trial(next(numbers), suggestion.config, day)
        scheduler.on_trial_add(trial)
        return Job(trial.trial_id, 0, LEVELS[0], trial)

    def tell(job: Job, loss: float) -> list[Job]:
        decision = scheduler.on_trial_result(job.payload, {"loss": loss, "epoch": job.target})
        above = level_above(job.target)
        if decision == "CONTINUE" and above is not None:
            return [Job(job.trial, job.target, above, job.payload)]
        scheduler.on_trial_remove(job.payload)
        return [new()]

    spent = play(lambda: [new() for _ in range(SLOTS)], tell, given.results)
    found = summary(spent, next(numbers), before)
    answer(found | {"version": f"syne-tune {importlib.metadata.version('syne-tune')}"})


if __name__ == "__main__":
    main()
