"""Our stopping rule in plain Optuna: against the core's own, and against a judge that counts everything anew."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.pruners import BasePruner
from optuna.trial import Trial, TrialState

from hpo_core.integrations.optuna import AshaPruner
from hpo_core.model.trial import Job
from hpo_core.study import Study

Values = Callable[[int, int], float]
"""What trial i reports at step s."""


def values_of(seed: int, *, ties: bool = False, bad: float = 0.0) -> Values:
    def value(trial: int, step: int) -> float:
        draws = random.Random(f"{seed}/{trial}/{step}")
        if draws.random() < bad:
            return draws.choice([math.nan, math.inf, -math.inf])
        found = random.Random(f"{seed}/{trial}").random() + draws.random() / step
        return round(found, 1) if ties else found

    return value


def new_study(pruner: BasePruner, direction: str = "minimize", storage: Any = None) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(pruner=pruner, direction=direction, storage=storage, study_name="s", load_if_exists=True)


def interleaved(study: optuna.Study, values: Values, *, trials: int, top: int, seed: int) -> dict[int, int]:
    """Runs three trials at a time, in random order; returns by trial the step at which it was pruned (0: not)."""
    order, running, ended = random.Random(seed), [], {}
    asked = 0
    while asked < trials or running:
        if asked < trials and len(running) < 3:
            running.append([study.ask(), 0])
            asked += 1
            continue
        job = order.choice(running)
        trial, step = job[0], job[1] + 1
        job[1] = step
        trial.report(values(trial.number, step), step)
        pruned = trial.should_prune()
        if pruned or step == top:
            running.remove(job)
            ended[trial.number] = step if pruned else 0
            last = values(trial.number, step)
            if pruned:
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, last if math.isfinite(last) else 0.0)
    return ended


class Judge:
    """The text of the rule, counted anew each time: the best floor(n / eta) of the n results so far go on."""

    def __init__(self, levels: list[int], eta: float) -> None:
        self.levels, self.eta = levels, eta
        self.seen: dict[int, list[tuple[float, int]]] = {level: [] for level in levels}

    def stops(self, trial: int, step: int, value: float) -> bool:
        if step not in self.levels[:-1]:
            return False
        self.seen[step].append((value if math.isfinite(value) else math.inf, trial))
        n = len(self.seen[step])
        if not math.isfinite(value):
            return True
        if n < self.eta:
            return False
        best = sorted(self.seen[step])[: math.floor(n / self.eta)]
        return (value, trial) not in best


class Checked(AshaPruner):
    """Compared with the judge at each step."""

    def __init__(self, judge: Judge, **settings: Any) -> None:
        super().__init__(**settings)
        self.judge = judge

    def prune(self, study: optuna.Study, trial: Any) -> bool:
        found = super().prune(study, trial)
        step = trial.last_step
        assert found == self.judge.stops(trial.number, step, trial.intermediate_values[step])
        assert super().prune(study, trial) is found  # asked again, it answers the same
        return found


@pytest.mark.parametrize("eta", [2, 3, 2.5])
@pytest.mark.parametrize(("ties", "bad"), [(False, 0.0), (True, 0.1)])
def test_as_the_text_says(eta: float, ties: bool, bad: float) -> None:
    for seed in range(2):
        values = values_of(seed, ties=ties, bad=bad)
        pruner = AshaPruner(max_resource=9, reduction_factor=eta)
        judge = Judge([level for k in range(9) if (level := pruner.level(k)) is not None] + [9], eta)

        study = new_study(Checked(judge, max_resource=9, reduction_factor=eta))
        ended = interleaved(study, values, trials=40, top=9, seed=seed)
        assert len(ended) == 40 and 0 in ended.values() and any(ended.values())


@pytest.mark.parametrize("mode", ["min", "max"])
def test_as_the_core_decides(mode: str) -> None:
    """The same results in the same order: the core's stopping variant stops the same trials at the same rungs."""
    for seed in range(2):
        values = values_of(seed, ties=seed == 1)
        spec: dict[str, Any] = {
            "study": "core",
            "metric": {"name": "loss", "mode": mode},
            "space": {"x": {"type": "float", "low": 0, "high": 1}},
            "search": {"method": "asha", "variant": "stopping", "configs": 40, "max_resource": 27, "min_resource": 1,
                       "reduction_factor": 3},
        }  # fmt: skip
        core = Study.create(spec)
        plain = new_study(AshaPruner(max_resource=27), "maximize" if mode == "max" else "minimize")
        running: list[Job] = list(core.set_capacity(4))
        trials: dict[int, Trial] = {}
        order = random.Random(seed)
        while running:
            job = running.pop(order.randrange(len(running)))
            while len(trials) <= job.trial:
                trials[len(trials)] = plain.ask()
            value = values(job.trial, job.target)
            running += core.tell(job, {"loss": value})
            trials[job.trial].report(value, job.target)
            assert trials[job.trial].should_prune() is (core.state.trials[job.trial].stopped is not None)
        assert core.finished and {t.resource for t in core.state.trials} >= {1, 3, 27}


@pytest.mark.slow
def test_two_processes_see_each_other(tmp_path: Path) -> None:
    """What one has just reported counts in the other's next decision."""
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    here = new_study(AshaPruner(max_resource=9, shared=True), storage=url)
    alone = new_study(AshaPruner(max_resource=9), storage=url)
    for study in (here, alone):
        trial = study.ask()
        trial.report(1.0, 1)
        assert not trial.should_prune()
    code = (
        "import optuna\n"
        "from hpo_core.integrations.optuna import AshaPruner\n"
        f"study = optuna.load_study(study_name='s', storage={url!r}, pruner=AshaPruner(max_resource=9, shared=True))\n"
        "trial = study.ask(); trial.report(0.1, 1)\n"
        "assert not trial.should_prune(), 'the best of three'\n"
        "trial = study.ask(); trial.report(0.2, 1)\n"
        "assert trial.should_prune(), 'the second of four'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
    trial = here.ask()
    trial.report(0.05, 1)
    assert not trial.should_prune()  # the best of five
    trial = here.ask()
    trial.report(0.15, 1)
    assert trial.should_prune()  # the third of six


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"min_resource": 0}, "min_resource = 0"),
        ({"reduction_factor": 1}, "reduction_factor = 1"),
        ({"max_resource": 1}, "nothing is ever pruned"),
    ],
)
def test_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        AshaPruner(**settings)


def test_several_objectives_are_refused() -> None:
    pruner = AshaPruner(max_resource=9)
    study = optuna.create_study(directions=["minimize", "minimize"], pruner=pruner)
    frozen = optuna.trial.create_trial(values=[1, 1], intermediate_values={1: 1.0})
    with pytest.raises(ValueError, match="several objectives"):
        pruner.prune(study, frozen)
