"""Optuna on Dask: a DaskStorage in memory, two workers, each of which runs its share of the trials in one call."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import optuna
from distributed import Client, LocalCluster, wait
from optuna_integration.dask import DaskStorage
from slots import SECONDS, SLOTS, answer, note, noted


def optimize(study: optuna.Study, trials: int, log: str) -> None:
    def objective(trial: optuna.Trial) -> float:
        start = time.time()
        x = trial.suggest_float("x", 0.0, 1.0)
        time.sleep(SECONDS)
        note(log, start, time.time())
        return x

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study.optimize(objective, n_trials=trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="hpo-bench-") as folder,
        LocalCluster(n_workers=SLOTS, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        log = str(Path(folder) / "spans")
        study = optuna.create_study(storage=DaskStorage(client=client), sampler=optuna.samplers.RandomSampler(seed=0))
        calls = [client.submit(optimize, study, given.jobs // SLOTS, log, pure=False) for _ in range(SLOTS)]
        wait(calls)
        for call in calls:
            call.result()
        answer(noted(log))


if __name__ == "__main__":
    main()
