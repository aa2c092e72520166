"""Optuna's ask and tell in memory with RandomSampler and SuccessiveHalvingPruner.

A decision is: report, should_prune, and where the trial ends: tell, ask, suggest. It stops instead of promoting.
"""

from __future__ import annotations

import optuna
from workload import ETA, LEVELS, SLOTS, Job, answer, arguments, level_above, play, resident, summary


def main() -> None:
    given = arguments(__doc__).parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    before = resident()
    study = optuna.create_study(
        sampler=optuna.samplers.RandomSampler(seed=1),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA),
    )

    def new() -> Job:
        trial = study.ask()
        trial.suggest_float("learning_rate", 1e-4, 1.0, log=True)
        trial.suggest_int("width", 8, 256, log=True)
        trial.suggest_categorical("optimizer", ["sgd", "adam"])
        return Job(trial.number, 0, LEVELS[0], trial)

    def tell(job: Job, loss: float) -> list[Job]:
        trial = job.payload
        trial.report(loss, job.target)
        prune = trial.should_prune()
        above = level_above(job.target)
        if not prune and above is not None:
            return [Job(job.trial, job.target, above, trial)]
        if prune:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, loss)
        return [new()]

    spent = play(lambda: [new() for _ in range(SLOTS)], tell, given.results)
    found = summary(spent, len(study.get_trials(deepcopy=False)), before)
    answer(found | {"version": f"optuna {optuna.__version__}"})


if __name__ == "__main__":
    main()
