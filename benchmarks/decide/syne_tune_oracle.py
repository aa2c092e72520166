"""Syne Tune 0.13 plays tabulated curves and writes down everything it decided.

Reads a JSON file of cases, writes one log per case; run by differential.py, in Syne Tune's own environment.
A case has ``losses`` and ``seconds`` (a row per configuration in the order it is tried, a column per unit),
``levels``, ``eta``, ``workers``, ``type`` (promotion, stopping, pasha), ``brackets``, ``per_bracket``, ``seed``.

The answer per case: ``brackets``, the probability of each, and ``log``, a list of ``["new", trial, bracket]``,
``["promote", trial, level]`` and ``["result", trial, level, goes_on, ceiling, tolerance]``; the last two only
with PASHA.
"""

from __future__ import annotations

import datetime
import heapq
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

from syne_tune.backend.trial_status import Trial  # noqa: E402
from syne_tune.config_space import uniform  # noqa: E402
from syne_tune.optimizer.scheduler import SchedulerDecision  # noqa: E402
from syne_tune.optimizer.schedulers import HyperbandScheduler  # noqa: E402

DAY = datetime.datetime(2026, 1, 1)


class Player:
    """One scheduler, driven by hand on a virtual clock until every configuration was tried."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.stops = case["type"] == "stopping"
        self.levels = case["levels"]
        self.scheduler = HyperbandScheduler(
            {"x": uniform(0.0, 1.0), "epochs": self.levels[-1]},
            searcher="random",
            metric="loss",
            mode="min",
            resource_attr="epoch",
            max_resource_attr="epochs",
            type=case["type"],
            rung_levels=self.levels,
            brackets=case["brackets"],
            rung_system_per_bracket=case["per_bracket"],
            search_options={"debug_log": False},
            random_seed=case["seed"],
        )
        self.trials: list[Trial] = []
        self.reached: list[int] = []
        self.log: list[list[Any]] = []
        self.heap: list[tuple[float, int, int, int]] = []
        self.count = 0

    def play(self) -> dict[str, Any]:
        for _ in range(self.case["workers"]):
            self.suggest(0.0)
        while self.heap:
            now, _, number, level = heapq.heappop(self.heap)
            goes_on = self.report(number, level)
            if goes_on:
                self.start(now, number, self.levels[self.levels.index(level) + 1])
            elif not self.suggest(now):
                break
        return {"brackets": [float(p) for p in self.scheduler.bracket_distribution()], "log": self.log}

    def suggest(self, now: float) -> bool:
        """Fill a free worker; False once no configuration is left for it."""
        number = len(self.trials)
        suggestion = self.scheduler.suggest(number)
        if not suggestion.spawn_new_trial_id:
            number = int(suggestion.checkpoint_trial_id)
            target = int(suggestion.config["epochs"])
            self.log.append(["promote", number, target])
        elif number >= len(self.case["losses"]):
            return False
        else:
            trial = Trial(number, suggestion.config, DAY)
            self.trials.append(trial)
            self.reached.append(0)
            self.scheduler.on_trial_add(trial)
            bracket = int(self.scheduler._active_trials[str(number)].bracket)
            self.log.append(["new", number, bracket])
            target = self.levels[bracket]
        self.start(now, number, target)
        return True

    def start(self, now: float, number: int, target: int) -> None:
        self.count += 1
        seconds = self.case["seconds"][number]
        begin = seconds[self.reached[number] - 1] if self.reached[number] else 0.0
        heapq.heappush(self.heap, (now + max(0.0, seconds[target - 1] - begin), self.count, number, target))

    def report(self, number: int, level: int) -> bool:
        """Tell a result; whether the trial goes on by itself."""
        trial, losses = self.trials[number], self.case["losses"][number]
        first = self.reached[number] + 1 if self.case["type"] == "pasha" else level
        decision = ""
        for epoch in range(first, level + 1):
            result = {"loss": losses[epoch - 1], "epoch": epoch}
            if epoch == self.levels[-1]:
                self.scheduler.on_trial_complete(trial, result)
            else:
                decision = self.scheduler.on_trial_result(trial, result)
        self.reached[number] = level
        goes_on = self.stops and level < self.levels[-1] and decision == SchedulerDecision.CONTINUE
        entry: list[Any] = ["result", number, level, goes_on]
        if self.case["type"] == "pasha":
            (system,) = self.scheduler.terminator._rung_systems
            entry += [int(system.current_max_t), float(system.epsilon)]
        self.log.append(entry)
        return goes_on


def main() -> None:
    cases, out = map(Path, sys.argv[1:3])
    logs = [Player(case).play() for case in json.loads(cases.read_text())]
    out.write_text(json.dumps(logs))


if __name__ == "__main__":
    main()
