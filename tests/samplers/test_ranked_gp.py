from __future__ import annotations

import importlib.util
import math
from statistics import median
from typing import Any

import numpy as np
import pytest

from hpo_core import MemoryJournal, Study
from hpo_core.model.errors import SpecError
from hpo_core.replay.audit import audit
from hpo_core.samplers import ranked_gp
from tests.contract_suites.fake_training import STUDY, FakeTraining, example_spec, new_study

OURS = {"name": "ranked_gp", "n_startup_trials": 5}
SEARCH = {"method": "asha", "configs": 20, "max_resource": 9, "reduction_factor": 3}
UNIT = {"type": "float", "low": 0.0, "high": 1.0}
ONE = {"method": "random", "configs": 40, "max_resource": 1}


def told(loss: Any, *, configs: int = 40, **changes: Any) -> Study:
    """A study of single trainings, told one after the other; ``loss`` makes metrics of parameters."""
    study = Study.create(example_spec(**{"sampler": OURS, "search": ONE | {"configs": configs}} | changes))
    while (job := study.ask()) is not None:
        found = loss(job.params)
        study.tell(job, found if isinstance(found, dict) else {"loss": found})
    return study


@pytest.mark.parametrize("more", [{}, {"forbidden": [{"x": {"low": 0.5}, "c": "a"}]}])
def test_a_study_resumed_again_and_again_proposes_what_it_would_have(more: dict[str, Any]) -> None:
    training = FakeTraining(3, failures=0.05, nans=0.05)
    study = new_study(example_spec(sampler=OURS, search=SEARCH, **more), MemoryJournal(), training)
    training.play(study, training.play(study, steps=3))
    params = [trial.params for trial in study.state.trials]
    assert not any(study.spec.search_space().complaints(dict(one)) for one in params)

    journal, training = MemoryJournal(), FakeTraining(3, failures=0.05, nans=0.05)
    study = new_study(example_spec(sampler=OURS, search=SEARCH, **more), journal, training)
    running = training.play(study, steps=3)
    while running:  # each time by a process that knows the journal alone
        study = Study.open(STUDY, journal, clock=training.clock)
        running = training.play(study, running, steps=9)
    assert [trial.params for trial in study.state.trials] == params
    assert audit(journal.entries(STUDY)).clean


SPACE = {
    "kind": {"type": "categorical", "choices": ["a", "b"]},
    "x": {"type": "float", "low": -1.0, "high": 1.0},
    "rate": {"type": "float", "low": 1e-5, "high": 1.0, "log": True},
    "extra": UNIT | {"when": {"kind": "b"}},
}


def quadratic(params: Any) -> float:
    loss = (params["x"] - 0.3) ** 2 + (math.log10(params["rate"]) + 3) ** 2 / 8
    return float(loss + (params.get("extra", 0.7) - 0.4) ** 2)


def test_it_beats_random_search_in_a_conditional_space() -> None:
    def best(name: str) -> float:
        studies = [told(quadratic, sampler={"name": name}, space=SPACE, seed=seed) for seed in range(3)]
        return median(study.best.loss for study in studies if study.best is not None)

    assert best("ranked_gp") < 0.5 * best("random")


def test_proposals_follow_from_ranks_whatever_the_scale_and_the_direction() -> None:
    once = told(quadratic, space=SPACE, configs=20)
    metric = {"name": "loss", "mode": "max"}
    flipped = told(lambda params: -math.exp(quadratic(params)), space=SPACE, configs=20, metric=metric)
    assert [trial.params for trial in flipped.state.trials] == [trial.params for trial in once.state.trials]


def test_violated_constraints_keep_proposals_away() -> None:
    def late_share(**more: Any) -> float:
        study = told(
            lambda params: {"loss": params["x"], "limit": 0.4 - params["x"]}, space={"x": UNIT, "y": UNIT}, **more
        )
        late = [trial.params["x"] for trial in study.state.trials[25:]]
        return sum(x < 0.4 for x in late) / len(late)

    assert late_share(constraints=["limit"]) < 0.6 < late_share()


def test_a_finite_space_is_tried_without_repetitions_as_far_as_it_goes() -> None:
    whole = {"type": "int", "low": 0, "high": 3}
    study = told(lambda params: params["x"] + params["y"], space={"x": whole, "y": whole}, configs=16)
    tried = {tuple(trial.params.values()) for trial in study.state.trials}
    assert len(study.state.trials) == 16 and len(tried) >= 14, "random ones may repeat"


def test_the_gradient_of_the_fit_is_that_of_its_density(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    known = rng.random((30, 4)), rng.integers(0, 3, 30).astype(np.float64), rng.integers(0, 12, 30)
    scores = rng.normal(size=30)
    seen: list[float] = []

    def checked(loss: Any, start: Any, **_: Any) -> Any:
        theta = start + 0.3 * rng.normal(size=len(start))
        gradient = loss(theta)[1]
        for at in range(len(theta)):
            step = np.zeros(len(theta))
            step[at] = 1e-5
            seen.append(abs((loss(theta + step)[0] - loss(theta - step)[0]) / 2e-5 - gradient[at]))
        return type("Found", (), {"x": theta})

    monkeypatch.setattr(ranked_gp, "minimize", checked)
    ranked_gp.fit(known, scores, np.array([0, 1, 1, 2]))
    assert len(seen) == 8 and max(seen) < 1e-4


def test_awaited_results_shrink_deviations_and_leave_means() -> None:
    rng = np.random.default_rng(2)
    known = rng.random((12, 2)), np.zeros(12), np.arange(12)
    scores, owner = np.sin(5 * known[0][:, 0]), np.arange(2)
    settings = np.array([0.5, 0.5, 1.0, 10.0, 0.3, 10.0, 0.1])
    nothing = np.zeros((0, 2)), np.zeros(0), np.zeros(0)
    new = np.array([math.inf])
    awaited = rng.random((1, 2))
    at = awaited + 0.01, np.zeros(1), new
    before = ranked_gp.Posterior(known, scores, nothing, owner, settings).at(at)
    after = ranked_gp.Posterior(known, scores, (awaited, np.zeros(1), np.array([99])), owner, settings).at(at)
    assert after[0] == pytest.approx(before[0]) and after[1] < 0.9 * before[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"n_startup_trials": 0}, "n_startup_trials = 0 must be a whole number of at least 1"),
        ({"random_share": 0.1}, "takes no argument 'random_share'; it takes: n_startup_trials"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        example_spec(sampler={"name": "ranked_gp", **arguments})


def test_several_metrics_are_refused() -> None:
    metrics = [{"name": "loss"}, {"name": "speed"}]
    with pytest.raises(SpecError, match="ranked_gp cannot do 2 objectives; use TPESampler"):
        example_spec(sampler=OURS, metric=metrics[0], metrics=metrics)


def test_a_new_study_without_scipy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match="needs SciPy, which is not installed: pip install"):
        example_spec(sampler=OURS)
