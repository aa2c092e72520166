"""Syne Tune 0.13's promotion ASHA called directly: ``on_trial_result``, ``suggest``, ``on_trial_add``."""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import logging
import warnings

from workload import ETA, LEVELS, SLOTS, Job, answer, arguments, play, resident, summary

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

from syne_tune.backend.trial_status import Trial  # noqa: E402
from syne_tune.config_space import choice, lograndint, loguniform  # noqa: E402
from syne_tune.optimizer.baselines import ASHA  # noqa: E402


def main() -> None:
    given = arguments(__doc__).parse_args()
    before = resident()
    scheduler = ASHA(
        {
            "learning_rate": loguniform(1e-4, 1.0),
            "width": lograndint(8, 256),
            "optimizer": choice(["sgd", "adam"]),
            "epochs": LEVELS[-1],
        },
        metric="loss",
        mode="min",
        resource_attr="epoch",
        max_resource_attr="epochs",
        type="promotion",
        grace_period=LEVELS[0],
        reduction_factor=ETA,
        search_options={"debug_log": False},
        random_seed=1,
    )
    trials: dict[str, Trial] = {}
    reached: dict[str, int] = {}
    numbers = itertools.count()
    number = next(numbers)
    day = datetime.datetime(2026, 1, 1)

    def suggest() -> Job:
        nonlocal number
        suggestion = scheduler.suggest(number)
        target = int(suggestion.config["epochs"])
        if suggestion.spawn_new_trial_id:
            trial = trials[str(number)] = Trial(number, suggestion.config, day)
            scheduler.on_trial_add(trial)
            number = next(numbers)
        else:
            trial = trials[str(suggestion.checkpoint_trial_id)]
        return Job(trial.trial_id, reached.get(str(trial.trial_id), 0), target, trial)

    def tell(job: Job, loss: float) -> list[Job]:
        result = {"loss": loss, "epoch": job.target}
        if job.target >= LEVELS[-1]:
            scheduler.on_trial_complete(job.payload, result)
        else:
            scheduler.on_trial_result(job.payload, result)
        reached[str(job.trial)] = job.target
        return [suggest()]

    spent = play(lambda: [suggest() for _ in range(SLOTS)], tell, given.results)
    answer(summary(spent, number, before) | {"version": f"syne-tune {importlib.metadata.version('syne-tune')}"})


if __name__ == "__main__":
    main()
