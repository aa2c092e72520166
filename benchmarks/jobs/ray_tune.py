"""Ray Tune with actors reused: trials of a class Trainable, one step of 10 ms each, two at a time."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # noqa: E402
from ray import tune  # noqa: E402
from slots import SECONDS, SLOTS, answer, note, noted  # noqa: E402


class Job(tune.Trainable):
    def setup(self, config):
        self.log = config["log"]
        self.x = config["x"]

    def step(self):
        start = time.time()
        time.sleep(SECONDS)
        note(self.log, start, time.time())
        return {"loss": self.x, "done": True}

    def reset_config(self, new_config):
        self.x = new_config["x"]
        return True

    def save_checkpoint(self, checkpoint_dir):
        return None

    def load_checkpoint(self, checkpoint):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    given = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    ray.init(
        num_cpus=SLOTS,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": here}},
    )
    with tempfile.TemporaryDirectory(prefix="hpo-bench-ray-") as folder:
        log = os.path.join(folder, "spans")  # noqa: PTH118
        tune.Tuner(
            tune.with_resources(Job, {"cpu": 1}),
            param_space={"x": tune.uniform(0, 1), "log": log},
            tune_config=tune.TuneConfig(
                num_samples=given.jobs, max_concurrent_trials=SLOTS, reuse_actors=True, metric="loss", mode="min"
            ),
            run_config=tune.RunConfig(name="bench", storage_path=folder, verbose=0),
        ).fit()
        spans = noted(log)
    ray.shutdown()
    answer(spans, version=f"ray {ray.__version__}")


if __name__ == "__main__":
    main()
