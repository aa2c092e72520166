"""RankedGPSampler in plain Optuna and in studies of ours: the same proposals from the same history."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from statistics import median
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from hpo_core import MemoryJournal, Study
from hpo_core.model.errors import SpecError
from hpo_core.model.space.search_space import distributions, seen, suggest
from hpo_core.model.trial import Params
from hpo_core.replay.audit import audit
from hpo_core.samplers.optuna_sampler import OptunaSampler
from hpo_core.samplers.ranked_gp import RankedGPSampler
from hpo_core.samplers.sampler import Sampler
from tests.contract_suites.fake_training import STUDY, FakeTraining, example_spec, new_study

OURS = {"name": "ranked_gp", "n_startup_trials": 5}
SEARCH = {"method": "asha", "configs": 20, "max_resource": 9, "reduction_factor": 3}
optuna.logging.set_verbosity(optuna.logging.WARNING)


def in_plain_optuna(study: Study, seed: int) -> Params:
    """The proposal of a plain Optuna study whose trials are as ours are now."""
    plain = optuna.create_study(sampler=RankedGPSampler(n_startup_trials=5, seed=seed))
    space = study.spec.search_space()
    for trial in study.state.trials:
        found = {r.resource: math.nan if r.loss is None else r.loss for r in trial.results}
        more: dict[str, Any] = {"state": TrialState.RUNNING}
        if trial.abandoned is not None and not found:
            more = {"state": TrialState.FAIL}
        elif found and max(found) == 9 and not math.isnan(found[9]):
            more = {"state": TrialState.COMPLETE, "value": found[9]}
        elif found:
            more = {"state": TrialState.PRUNED}
        params = seen(space, dict(trial.params))
        plain.add_trial(
            optuna.trial.create_trial(
                params=params, distributions=distributions(space, params), intermediate_values=found, **more
            )
        )
    return suggest(space, plain.ask())


class Compared:
    """Asks plain Optuna each time that the study asks its sampler."""

    def __init__(self, inner: Sampler, other: Callable[[], Params]) -> None:
        self.inner, self.other = inner, other
        self.same: list[bool] = []

    def propose(self, number: int, given: Params | None = None) -> Params | None:
        expected = self.other()
        found = self.inner.propose(number, given)
        self.same.append(expected == found)
        return found

    def apply(self, event: Any) -> None:
        self.inner.apply(event)


def test_plain_optuna_and_ours_propose_the_same_from_the_same_history() -> None:
    training = FakeTraining(3, failures=0.05, nans=0.05)
    study = new_study(example_spec(sampler=OURS, search=SEARCH), training=training)
    compared = Compared(study.sampler, lambda: in_plain_optuna(study, 7))
    study.sampler = study.parts.sampler = compared
    training.play(study)
    assert len(compared.same) == 20 and all(compared.same)


@pytest.mark.parametrize("more", [{}, {"forbidden": [{"x": {"low": 0.5}, "c": "a"}]}])
def test_a_resumed_study_proposes_what_it_would_have(more: dict[str, Any]) -> None:
    journal = MemoryJournal()
    training = FakeTraining(3, failures=0.05, nans=0.05)
    study = new_study(example_spec(sampler=OURS, search=SEARCH, **more), journal, training)
    running = training.play(study, steps=3)
    for _ in range(3):
        running = training.play(study, running, steps=7)
        again = Study.open(STUDY, journal)
        number = len(study.state.trials)
        there, here = again.sampler.propose(number), Study.open(STUDY, journal).sampler.propose(number)
        assert there == here
        assert isinstance(study.sampler, OptunaSampler)
        live = pickle.loads(pickle.dumps(study.sampler._study.sampler))
        assert live._seed == 7
    training.play(study, running)
    params = [trial.params for trial in study.state.trials]

    other, training = MemoryJournal(), FakeTraining(3, failures=0.05, nans=0.05)
    study = new_study(example_spec(sampler=OURS, search=SEARCH, **more), other, training)
    running = training.play(study, steps=3)
    while running:  # each time by a process that knows the journal alone
        study = Study.open(STUDY, other, clock=training.clock)
        running = training.play(study, running, steps=9)
    assert [trial.params for trial in study.state.trials] == params
    assert audit(other.entries(STUDY)).clean


def quadratic(trial: optuna.Trial) -> float:
    x, rate = trial.suggest_float("x", -1, 1), trial.suggest_float("rate", 1e-5, 1, log=True)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    extra = trial.suggest_float("extra", 0, 1) if kind == "b" else 0.7
    loss = (x - 0.3) ** 2 + (math.log10(rate) + 3) ** 2 / 8 + (extra - 0.4) ** 2
    for step in (1, 3, 9):
        trial.report(loss + 0.1 / step * math.sin(9 * x), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


def optimized(objective: Callable[[optuna.Trial], float] = quadratic, *, trials: int = 30, **more: Any) -> optuna.Study:
    sampler = more.pop("sampler", None) or RankedGPSampler(seed=more.pop("seed", 1))
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = optuna.create_study(sampler=sampler, pruner=pruner, **more)
    study.optimize(objective, n_trials=trials)
    return study


def params_of(study: optuna.Study) -> list[dict[str, Any]]:
    return [trial.params for trial in study.trials]


def test_it_beats_random_search_in_a_conditional_space() -> None:
    ours = median(optimized(seed=seed).best_value for seed in range(5))
    drawn = median(optimized(sampler=optuna.samplers.RandomSampler(seed=seed)).best_value for seed in range(5))
    assert ours < 0.5 * drawn


def test_proposals_follow_from_ranks_whatever_the_scale_and_the_direction() -> None:
    once = params_of(optimized())
    assert once == params_of(optimized())

    class Flipped(optuna.Trial):
        def report(self, value: float, step: int) -> None:
            super().report(-math.exp(value), step)

    def flipped(trial: optuna.Trial) -> float:
        return -math.exp(quadratic(Flipped(trial.study, trial._trial_id)))

    assert params_of(optimized(flipped, direction="maximize")) == once


def test_a_sampler_that_was_pickled_goes_on_the_same() -> None:
    whole = optimized(trials=16)
    half = optimized(trials=8)
    half.sampler = pickle.loads(pickle.dumps(half.sampler))
    half.optimize(quadratic, n_trials=8)
    assert params_of(half) == params_of(whole)


def test_enqueued_trials_and_threads_work() -> None:
    study = optuna.create_study(sampler=RankedGPSampler(seed=1, n_startup_trials=3))
    study.enqueue_trial({"x": 0.5, "kind": "b"})
    study.optimize(quadratic, n_trials=12, n_jobs=3)
    assert study.trials[0].params["x"] == 0.5 and study.trials[0].params["kind"] == "b"
    assert len(study.trials) == 12 and not any(trial.state == TrialState.FAIL for trial in study.trials)


def test_constraints_keep_proposals_away() -> None:
    def late_share(constrained: bool) -> float:
        study = optuna.create_study(sampler=RankedGPSampler(seed=2, n_startup_trials=6, random_share=0.0))
        space = {name: optuna.distributions.FloatDistribution(0, 1) for name in "xy"}
        for _ in range(25):
            asked = study.ask(space)
            value = asked.params["x"]
            done = optuna.trial.create_trial(
                params=asked.params,
                distributions=space,
                value=value,
                system_attrs={"constraints": [0.4 - value]} if constrained else {},
            )
            study.tell(asked, state=TrialState.FAIL)
            study.add_trial(done)
        return sum(trial.params["x"] < 0.4 for trial in study.trials[30:]) / len(study.trials[30:])

    assert late_share(True) < 0.5 < late_share(False)


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_at_the_edge_of_what_constraints_allow_is_found(seed: int) -> None:
    study = optuna.create_study(sampler=RankedGPSampler(seed=seed))
    best = math.inf
    for _ in range(40):  # Gramacy et al. 2016
        asked = study.ask()
        x, y = asked.suggest_float("x", 0, 1), asked.suggest_float("y", 0, 1)
        violated = 1.5 - x - 2 * y - 0.5 * math.sin(2 * math.pi * (x * x - 2 * y)), x * x + y * y - 1.5
        carried = dict(enumerate(violated))
        study._storage.set_trial_system_attr(asked._trial_id, "constraints", list(carried.values()))
        study.tell(asked, x + y)
        best = x + y if max(violated) <= 0 and x + y < best else best
    assert best < 0.6 + 0.08


def stepped(trial: optuna.Trial) -> float:
    x, y = trial.suggest_int("x", 0, 4), trial.suggest_float("y", 0.1, 0.4, step=0.1)
    if trial.suggest_categorical("kind", ["a", "b", "c"]) == "a" and x == 2:
        raise optuna.TrialPruned if y > 0.3 else RuntimeError("does not train")
    return abs(x - 2) + y


@pytest.mark.parametrize(("objective", "size"), [(stepped, 60), (lambda t: conditional(t), 40)])
def test_a_finite_space_is_tried_whole_before_anything_is_repeated(
    objective: Callable[[optuna.Trial], float], size: int
) -> None:
    study = optuna.create_study(sampler=RankedGPSampler(seed=1))
    study.optimize(objective, n_trials=2 * size, catch=RuntimeError)
    tried = [frozenset(trial.params.items()) for trial in study.trials]
    assert len(set(tried[:size])) == size
    assert len(tried) == 2 * size and not any(trial.state == TrialState.FAIL for trial in study.trials[size:])


def conditional(trial: optuna.Trial) -> float:
    if trial.suggest_categorical("kind", ["p", "q"]) == "p":
        return trial.suggest_int("a", 0, 9)
    return trial.suggest_int("b", 0, 9) * 0.5 + trial.suggest_int("c", 1, 3)


def test_a_finite_space_with_forbidden_combinations_is_tried_whole_after_restarts_too() -> None:
    values = {"type": "int", "low": 0, "high": 3}
    more: dict[str, Any] = {
        "space": {"x": values, "y": values},
        "sampler": OURS,
        "search": {"method": "random", "configs": 12, "max_resource": 1},
        "forbidden": [{"x": 0, "y": y} for y in range(4)],
    }
    journal, training = MemoryJournal(), FakeTraining(3)
    study = new_study(example_spec(**more), journal, training)
    training.play(study)
    params = [trial.params for trial in study.state.trials]
    assert len({tuple(one.values()) for one in params}) == 12

    journal, training = MemoryJournal(), FakeTraining(3)
    study = new_study(example_spec(**more), journal, training)
    running = training.play(study, steps=3)
    while running:
        study = Study.open(STUDY, journal, clock=training.clock)
        running = training.play(study, running, steps=2)
    assert [trial.params for trial in study.state.trials] == params


def test_a_smooth_function_is_followed_to_its_minimum() -> None:
    def sphere(trial: optuna.Trial) -> float:
        return float(sum((trial.suggest_float(f"x{i}", -1, 1) - 0.1 * i + 0.3) ** 2 for i in range(8)))

    best = [optimized(sphere, trials=70, seed=seed).best_value for seed in range(3)]
    assert median(best) < 0.25, "the best of 200 candidates drawn evenly end at 0.38 on average"


def test_two_objectives_are_both_approached() -> None:
    def two(trial: optuna.Trial) -> tuple[float, float]:
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
        return x**2 + y, (x - 1) ** 2 + y

    study = optuna.create_study(directions=["minimize", "minimize"], sampler=RankedGPSampler(seed=3))
    study.optimize(two, n_trials=35)
    late = study.trials[15:]
    assert median(trial.params["y"] for trial in late) < 0.15
    assert max(trial.params["x"] for trial in late) - min(trial.params["x"] for trial in late) > 0.5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"n_startup_trials": 0}, "n_startup_trials = 0 must be a whole number of at least 1"),
        ({"random_share": 1.5}, "random_share = 1.5 must lie between 0 and 1"),
        ({"random_share": "much"}, "random_share = 'much' must lie between 0 and 1"),
        ({"seed": 3}, "the study's seed serves"),
        ({"share": 0.1}, "takes no argument 'share' here; it takes: n_startup_trials, random_share"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        example_spec(sampler={"name": "ranked_gp", **arguments})
