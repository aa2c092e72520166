"""PASHA's ceiling in plain Optuna: against a judge written from the paper's text, and against the core."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import random
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import Trial, TrialState

from hpo_core.integrations.optuna import PashaPruner
from hpo_core.model.trial import Job, Point
from hpo_core.search.pasha import Pasha
from hpo_core.study import Study
from tests.conftest import completed
from tests.optuna.test_pruners import Values, interleaved, new_study, values_of


class TextJudge:
    """The text of PASHA, all counted anew at each result: the ceiling, its tolerance, and who stops."""

    def __init__(self, levels: list[int], eta: float, percentile: float) -> None:
        self.levels, self.eta, self.percentile = levels, eta, percentile
        self.top = 1
        self.tolerance = 0.0
        self.curves: dict[int, dict[int, float]] = {}

    def stops(self, trial: int, step: int, value: float) -> bool:
        self.curves.setdefault(trial, {})[step] = value if math.isfinite(value) else math.inf
        if step not in self.levels[:-1]:
            return False
        if step == self.levels[self.top] and not self.stable():
            self.top += 1
        if self.levels.index(step) >= self.top:
            return True
        ranked = sorted((curve[step], number) for number, curve in self.curves.items() if step in curve)
        if not math.isfinite(value):
            return True
        return len(ranked) >= self.eta and (value, trial) not in ranked[: math.floor(len(ranked) / self.eta)]

    def stable(self) -> bool:
        """Each configuration of the upper rung is exchangeable with the one at its place in the rung below."""
        below, level = self.levels[self.top - 1], self.levels[self.top]
        there = {number: curve for number, curve in self.curves.items() if level in curve}
        distances = [
            abs(a[level] - b[level])
            for a, b in combinations(there.values(), 2)
            if math.isfinite(a[level]) and math.isfinite(b[level]) and self.cross_twice(a, b, level)
        ]
        if distances:
            self.tolerance = float(np.percentile(distances, self.percentile))
        upper = sorted(there, key=lambda number: (there[number][level], there[number][below], number))
        lower = sorted(there, key=lambda number: (there[number][below], number))
        return all(self.alike(there[a][below], there[b][below]) for a, b in zip(upper, lower, strict=True))

    def alike(self, a: float, b: float) -> bool:
        return a == b or abs(a - b) <= self.tolerance + 1e-12

    @staticmethod
    def cross_twice(a: dict[int, float], b: dict[int, float], level: int) -> bool:
        both = [
            at for at in sorted(a.keys() & b.keys()) if at <= level and math.isfinite(a[at]) and math.isfinite(b[at])
        ]
        signs = [a[at] > b[at] for at in both if a[at] != b[at]]
        return a[level] != b[level] and sum(x != y for x, y in pairwise(signs)) >= 2


class Checked(PashaPruner):
    """Compared with the judge at each step."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.judge = TextJudge(self.levels, self.reduction_factor, self.percentile)

    def prune(self, study: optuna.Study, trial: Any) -> bool:
        found = super().prune(study, trial)
        step = trial.last_step
        assert found == self.judge.stops(trial.number, step, trial.intermediate_values[step])
        assert self.ceiling(study) == self.judge.levels[self.judge.top]
        assert super().prune(study, trial) is found  # asked again, it answers the same
        return found


def steady(seed: int, noise: float) -> Values:
    """Curves that keep their order up to some noise."""
    return lambda trial, step: (
        random.Random(f"{seed}/{trial}").random() + 1 / step + noise * random.Random(f"{seed}/{trial}/{step}").random()
    )


@pytest.mark.parametrize(("eta", "least", "most"), [(2, 1, 9), (2.5, 2, 13), (3, 1, 9)])
def test_as_the_text_says(eta: float, least: int, most: int) -> None:
    ceilings, tolerances = set(), []
    worlds = [steady(1, 0.0), steady(2, 0.05), steady(3, 0.2), values_of(4), values_of(5, ties=True, bad=0.1)]
    for seed, values in enumerate(worlds):
        pruner = Checked(min_resource=least, max_resource=most, reduction_factor=eta, percentile=(90, 50)[seed % 2])
        study = new_study(pruner)
        ended = interleaved(study, values, trials=50, top=most, seed=seed)
        assert len(ended) == 50
        ceilings.add(pruner.ceiling(study))
        tolerances.append(pruner.judge.tolerance)
        assert max(len(trial.intermediate_values) for trial in study.trials) <= pruner.ceiling(study)
    assert pruner.levels[1] in ceilings and most in ceilings, ceilings
    assert any(tolerances)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_ceiling_is_the_core_s(mode: str) -> None:
    """The core's own run, result by result: the same results in the same order raise the same ceiling."""
    seen = set()
    for seed in range(3):
        values = steady(seed, (0.0, 0.05, 0.5)[seed])
        spec: dict[str, Any] = {
            "study": "core",
            "metric": {"name": "loss", "mode": mode},
            "space": {"x": {"type": "float", "low": 0, "high": 1}},
            "search": {"method": "pasha", "configs": 40, "max_resource": 8, "reduction_factor": 2},
        }
        core = Study.create(spec)
        method = core.method
        assert isinstance(method, Pasha)
        pruner = PashaPruner(max_resource=8, reduction_factor=2)
        plain = new_study(pruner, "maximize" if mode == "max" else "minimize")
        running: list[Job] = list(core.set_capacity(4))
        trials: dict[int, Trial] = {}
        reported: dict[int, set[int]] = {}
        order = random.Random(seed)
        while running:
            job = running.pop(order.randrange(len(running)))
            while len(trials) <= job.trial:
                trials[len(trials)] = plain.ask()
            start = job.checkpoint.resource if job.checkpoint else 0
            told = [Point(at, {"loss": values(job.trial, at)}) for at in range(start + 1, job.target + 1)]
            running += core.tell_report(completed(job, told[-1].metrics["loss"], curve=tuple(told)))
            for point in told:
                if point.resource not in reported.setdefault(job.trial, set()):
                    trials[job.trial].report(point.metrics["loss"], point.resource)
                    reported[job.trial].add(point.resource)
            trials[job.trial].should_prune()  # whatever it says: the core promotes, and Optuna cannot
            assert pruner.ceiling(plain) == method.ladder.rungs[method.ladder.ceiling].level
        assert core.finished
        seen.add(pruner.ceiling(plain))
    assert {2, 8} <= seen


def test_goes_on_where_another_left_off() -> None:
    """A pickled pruner, which knows nothing but the storage, decides as one that was there all the time."""
    storage = optuna.storages.InMemoryStorage()
    values = steady(7, 0.1)
    halves = new_study(PashaPruner(max_resource=9, reduction_factor=2), storage=storage)
    first = interleaved(halves, values, trials=14, top=9, seed=1)
    pruner = pickle.loads(pickle.dumps(halves.pruner))
    again = optuna.load_study(study_name="s", storage=storage, pruner=pruner)
    assert pruner.ceiling(again) == halves.pruner.ceiling(halves)  # type: ignore[attr-defined]
    assert pruner.ceiling(again) in (4, 9), "a raise that must be remembered: the results alone no longer show it"
    both = first | interleaved(again, values, trials=14, top=9, seed=2)
    whole = new_study(PashaPruner(max_resource=9, reduction_factor=2))
    expected = interleaved(whole, values, trials=14, top=9, seed=1)
    expected |= interleaved(whole, values, trials=14, top=9, seed=2)
    assert both == expected


def shared_study(path: str, pruner: PashaPruner) -> optuna.Study:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return new_study(pruner, storage=JournalStorage(JournalFileBackend(path)))


def turn_the_order(path: str) -> None:
    """What the other process does."""
    pruner = PashaPruner(max_resource=27, shared=True)
    study = shared_study(path, pruner)
    trial = study.ask()
    trial.report(0.2, 1)
    assert not trial.should_prune(), "two results are fewer than eta"
    trial.report(0.4, 3)
    assert not trial.should_prune(), "it turned the order, so its rung is no longer the ceiling"
    assert pruner.ceiling(study) == 9


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_pruners_share_one_ceiling(tmp_path: Path, processes: int) -> None:
    """What one raised, the other does not stop at; what one has just reported counts in the other's comparison."""
    path = str(tmp_path / "optuna.log")
    sharing, alone = PashaPruner(max_resource=27, shared=True), PashaPruner(max_resource=27)
    here, there = shared_study(path, sharing), shared_study(path, alone)
    one = here.ask()
    one.report(0.1, 1)
    one.report(0.5, 3)
    assert one.should_prune(), "alone at the ceiling: no order to differ"
    assert (sharing.ceiling(here), alone.ceiling(there)) == (3, 3)
    if processes == 1:
        turn_the_order(path)
    else:
        other = multiprocessing.get_context("spawn").Process(target=turn_the_order, args=(path,))
        other.start()
        other.join(600)
        assert other.exitcode == 0
    assert (sharing.ceiling(here), alone.ceiling(there)) == (9, 3)
    best = here.ask()
    best.report(0.01, 1)
    best.report(0.01, 3)
    assert not best.should_prune()  # the best of three below the ceiling of 9


def test_threads_and_values_at_the_ceiling() -> None:
    """The objective of the documentation: what stops at the ceiling is COMPLETE, so there is a best trial."""
    pruner = PashaPruner(max_resource=27)
    study = new_study(pruner)
    study.sampler = optuna.samplers.RandomSampler(seed=1)

    def objective(trial: Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(1, 28):
            trial.report(x + 1 / step, step)
            if trial.should_prune():
                if step == pruner.ceiling(trial.study):
                    break
                raise optuna.TrialPruned
        return x + 1 / step

    study.optimize(objective, n_trials=60, n_jobs=4)
    states = [trial.state for trial in study.trials]
    assert states.count(TrialState.PRUNED) > 10 and TrialState.COMPLETE in states
    assert pruner.ceiling(study) == 3, "the order never turned"
    assert study.best_trial.last_step == 3


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"max_resource": 27, "min_resource": 0}, "min_resource = 0"),
        ({"max_resource": 27, "reduction_factor": math.nan}, "reduction_factor = nan"),
        ({"max_resource": 1}, "nothing is ever pruned"),
        ({"max_resource": 3}, "could never rise"),
        ({"max_resource": 27, "percentile": 101}, "percentile = 101"),
        ({"max_resource": 27, "percentile": math.nan}, "percentile = nan"),
    ],
)
def test_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        PashaPruner(**settings)


def test_several_objectives_are_refused() -> None:
    pruner = PashaPruner(max_resource=9)
    study = optuna.create_study(directions=["minimize", "minimize"], pruner=pruner)
    frozen = optuna.trial.create_trial(values=[1, 1], intermediate_values={1: 1.0})
    with pytest.raises(ValueError, match="PashaPruner: Optuna prunes no trials of studies with several objectives"):
        pruner.prune(study, frozen)
