"""Syne Tune's local backend (0.13 or 0.16): a process per trial, random search, two workers.

The tuner looks for results every ``sleep_time`` seconds; 5 by default, 10 ms here, in its favour.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

from slots import SLOTS, answer, noted  # noqa: E402
from syne_tune import StoppingCriterion, Tuner  # noqa: E402
from syne_tune.backend import LocalBackend  # noqa: E402
from syne_tune.config_space import uniform  # noqa: E402
from syne_tune.optimizer.baselines import RandomSearch  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    given = parser.parse_args()
    version = importlib.metadata.version("syne-tune")
    here = Path(__file__).resolve().parent
    os.environ["PYTHONPATH"] = str(here)
    with tempfile.TemporaryDirectory(prefix="hpo-bench-syne-") as folder:
        os.environ["SYNETUNE_FOLDER"] = folder
        log = str(Path(folder) / "spans")
        space = {"x": uniform(0, 1), "log": log}
        if version.startswith("0.13"):
            scheduler = RandomSearch(space, metric="loss", search_options={"debug_log": False})
        else:
            scheduler = RandomSearch(space, metrics=["loss"])
        Tuner(
            trial_backend=LocalBackend(entry_point=str(here / "syne_tune_script.py")),
            scheduler=scheduler,
            stop_criterion=StoppingCriterion(max_num_trials_finished=given.jobs),
            n_workers=SLOTS,
            sleep_time=0.01,
            save_tuner=False,
            print_update_interval=10_000,
            suffix_tuner_name=False,
            tuner_name="bench",
        ).run()
        spans = noted(log)[: given.jobs]
    answer(spans, version=f"syne-tune {version}")


if __name__ == "__main__":
    main()
