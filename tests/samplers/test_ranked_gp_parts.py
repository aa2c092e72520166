"""The parts of ranked_gp: the belief across rungs, the Gaussian process, places of values."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from hpo_core.samplers import gaussian_process, ranked_results, rung_belief
from hpo_core.samplers.gaussian_process import UnitCube
from hpo_core.samplers.ranked_results import Results

Array = NDArray[np.float64]

NAN, INF = float("nan"), float("inf")


CUBE = UnitCube({"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)})


def results(table: Array, at: Array, steps: Array | None = None, past: NDArray[np.bool_] | None = None) -> Results:
    params = [{"x": float(x), "y": 0.5} for x in at]
    places = np.zeros(1) if steps is None else ranked_results.places_of(steps)
    return Results(params, table, places, np.zeros(len(at), dtype=np.bool_) if past is None else past, [], None)


def test_scores_are_normal_quantiles_of_places_among_the_results_of_all_rungs() -> None:
    table = np.array([[5.0, 2.0], [INF, NAN], [1.0, NAN], [3.0, NAN]])
    found = rung_belief.observed(CUBE, results(table, np.arange(4) / 4, np.array([1.0, 3.0])))
    quantile = [NormalDist().inv_cdf((place + 0.5) / 5) for place in range(5)]
    assert np.allclose(found.scores, [quantile[at] for at in (0, 1, 2, 4, 3)])
    assert found.trial.tolist() == [0, 1, 2, 3, 1], "last results first, best trial first"
    assert found.inputs.tolist() == [[0.0], [1.0], [0.0], [0.0], [0.0]]
    scaled = rung_belief.observed(CUBE, results(np.exp(table) * 1e6, np.arange(4) / 4, np.array([1.0, 3.0])))
    assert np.array_equal(scaled.scores, found.scores)
    ties = rung_belief.observed(CUBE, results(np.array([[1.0], [1.0], [2.0]]), np.arange(3) / 4)).scores
    assert ties[0] == ties[1] < ties[2]


def expected(table: Array, at: Array, asked: list[float], **more: Any) -> Array:
    found = rung_belief.Belief(CUBE, rung_belief.observed(CUBE, results(table, at, **more)))
    points = CUBE.points([{"x": x, "y": 0.5} for x in asked])
    means, _ = found.scores.mean(found._on_top(CUBE.features(points)))
    return means


@pytest.mark.parametrize("agree", [True, False])
def test_how_far_low_rungs_are_believed_follows_from_the_results(agree: bool) -> None:
    rng = np.random.default_rng(0)
    at = np.append(rng.random(30) / 2, rng.random(20))
    low = (at - 0.9) ** 2 + 0.01 * rng.random(50)
    table = np.stack([low, np.full(50, NAN)], axis=1)
    table[:30, 1] = low[:30] / 10 if agree else 0.8 - low[:30]  # of x <= 0.5 alone
    means = expected(table, at, [0.1, 0.45, 0.9], steps=np.array([1.0, 9.0]))
    assert (means[2] < means[0]) == agree
    assert (means[1] < means[0]) == agree


def test_an_earlier_study_that_contradicts_is_not_believed() -> None:
    rng = np.random.default_rng(1)
    at = rng.random(60)
    past = np.arange(60) >= 20

    def means(flipped: bool) -> Array:
        table = ((at - 0.8) ** 2)[:, None] * np.where(past & flipped, -1.0, 1.0)[:, None]
        return expected(table, at, [0.8, 0.1], past=past)

    assert means(False)[0] < means(False)[1]
    assert means(True)[0] < means(True)[1]


@pytest.mark.parametrize(
    ("steps", "expected_places"),
    [
        ([1, 3, 9, 27], [0, 1 / 3, 2 / 3, 1]),
        ([100, 300, 900], [0, 0.5, 1]),
        ([5], [0]),
        ([INF], [0]),
        ([3, INF], [0, 1]),
        ([1, 3, 9, INF], [0, 1 / 3, 2 / 3, 1]),
        ([0, 1, 4], [0, 0.5, 1]),
    ],
)
def test_rungs_have_places_by_the_logarithm_of_their_steps(steps: list[float], expected_places: list[float]) -> None:
    assert np.allclose(ranked_results.places_of(np.array(steps, dtype=np.float64)), expected_places)


def test_residuals_of_left_out_groups_are_those_of_a_model_without_them() -> None:
    rng = np.random.default_rng(4)
    features, group = rng.random((20, 2)), np.array([0, 1, 2, 3, 4] * 4)
    scores = np.sin(5 * features[:, 0]) + 0.1 * rng.normal(size=20)
    owner = np.arange(2)
    data = gaussian_process.Data(features, owner, scores)
    settings = gaussian_process.fit(data, 2, 5)
    found = gaussian_process.Posterior(data, settings).left_out(group)
    for one in range(5):
        rest = group != one
        model = gaussian_process.Posterior(gaussian_process.Data(features[rest], owner, scores[rest]), settings)
        assert np.allclose(found[~rest], scores[~rest] - model.mean(features[~rest])[0], atol=1e-5)


def test_local_candidates_are_trusted_where_the_model_knows_the_best_points() -> None:
    at = np.linspace(0, 1, 60)
    smooth = rung_belief.Belief(CUBE, rung_belief.observed(CUBE, results(((at - 0.4) ** 2)[:, None], at)))
    noise = np.random.default_rng(0).normal(size=(60, 1))
    blind = rung_belief.Belief(CUBE, rung_belief.observed(CUBE, results(noise, at)))
    assert blind.trust() < 0.3 < 0.7 < smooth.trust()
    near = smooth.near(np.random.default_rng(1), 200)
    assert np.median(np.abs(near[:, 0] - 0.4)) < 0.1 and near.min() >= 0 and near.max() <= 1


def test_the_gradient_of_the_likelihood_is_that_of_differences() -> None:
    rng = np.random.default_rng(1)
    features = rng.random((30, 4))
    data = gaussian_process.Data(features, np.array([0, 1, 2, 2]), rng.normal(size=30))
    theta = 0.3 * rng.normal(size=5)
    gradient, _ = gaussian_process.Likelihood(data, theta).slopes()
    for at in range(5):
        step = np.zeros(5)
        step[at] = 1e-5
        up, down = (gaussian_process.Likelihood(data, theta + sign * step).log for sign in (1, -1))
        assert gradient[at] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("noise", [0.1, 1e-3, 1e-8])
def test_the_inverse_by_its_root_is_exact_for_nearly_singular_covariances_too(noise: float) -> None:
    rng = np.random.default_rng(3)
    for n in (0, 1, 40, 41, 81, 150):
        points = rng.random((n, 2))
        covariance = np.exp(-((points[:, None] - points[None]) ** 2).sum(axis=2)) + noise * np.eye(n)
        root, log_det = gaussian_process.inverse_root(covariance)
        assert np.allclose(root.T @ root @ covariance, np.eye(n), atol=1e-12 * n / noise)
        assert log_det == pytest.approx(np.linalg.slogdet(covariance)[1], rel=1e-6)


def test_the_process_finds_which_parameters_matter_and_interpolates() -> None:
    rng = np.random.default_rng(2)
    features = rng.random((60, 3))
    scores = np.sin(6 * features[:, 0])
    data = gaussian_process.Data(features, np.arange(3), scores)
    settings = gaussian_process.fit(data, 3, 5)
    assert settings.lengths[0] < 0.5 * settings.lengths[1:].min()
    fresh = rng.random((40, 3))
    means, cross = (model := gaussian_process.Posterior(data, settings)).mean(fresh)
    assert np.abs(means - np.sin(6 * fresh[:, 0])).max() < 0.15
    none = np.zeros((0, 3))
    assert model.deviation(fresh, cross, none).max() < 0.3
    off = np.full((2, 3), 50.0)
    off[1] = -50.0
    far = model.mean(off)[1]
    assert np.allclose(model.deviation(off, far, none), np.sqrt(settings.signal))
    awaited = model.deviation(off, far, off[:1])
    assert awaited[0] < 0.5 * awaited[1], "a result is awaited at the first"


def test_results_that_are_awaited_and_as_expected_change_what_a_new_fit_would_change() -> None:
    rng = np.random.default_rng(3)
    features, awaited, fresh = rng.random((30, 2)), rng.random((4, 2)), rng.random((20, 2))
    data = gaussian_process.Data(features, np.arange(2), np.sin(5 * features[:, 0]))
    settings = gaussian_process.fit(data, 2, 5)
    model = gaussian_process.Posterior(data, settings)
    longer = gaussian_process.Data(
        np.concatenate([features, awaited]),
        data.owner,
        np.concatenate([data.scores, model.mean(awaited)[0]]),
    )
    again = gaussian_process.Posterior(longer, settings)
    means, cross = model.mean(fresh)
    others, other_cross = again.mean(fresh)
    assert np.allclose(means, others, atol=1e-5)
    one, two = model.deviation(fresh, cross, awaited), again.deviation(fresh, other_cross, np.zeros((0, 2)))
    assert np.allclose(one, two, atol=1e-5)


DISTRIBUTIONS: list[BaseDistribution] = [
    FloatDistribution(-1, 1),
    FloatDistribution(1e-7, 10, log=True),
    FloatDistribution(0, 1, step=0.3),
    FloatDistribution(2, 2),
    IntDistribution(0, 9),
    IntDistribution(-3, 8, step=2),
    IntDistribution(1, 1000, log=True),
    IntDistribution(5, 5, log=True),
    CategoricalDistribution(["a", None, 3.5]),
]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=repr)
def test_values_are_inside_and_come_back(distribution: BaseDistribution) -> None:
    cube = UnitCube({"p": distribution})
    points = cube.draw(np.random.default_rng(0), 300)
    values = [cube.params(point)["p"] for point in points]
    assert all(distribution._contains(distribution.to_internal_repr(value)) for value in values)
    if not distribution.single():
        assert np.allclose(cube.points([{"p": value} for value in values]), points, atol=1e-9)
    if isinstance(distribution, IntDistribution) and not distribution.log and not distribution.single():
        counts = [values.count(one) for one in set(values)]
        assert min(counts) > 0.4 * max(counts), "both ends are as likely as the rest"


def trial(**more: object) -> optuna.trial.FrozenTrial:
    return optuna.trial.create_trial(**{"params": {}, "distributions": {}} | more)  # type: ignore[arg-type]


def test_results_are_read_by_rung() -> None:
    states = optuna.trial.TrialState
    trials = [
        trial(value=1.0, intermediate_values={1: 3.0, 9: 1.0}),
        trial(state=states.PRUNED, intermediate_values={1: NAN}),
        trial(state=states.RUNNING, intermediate_values={1: 2.0}),
        trial(state=states.RUNNING),
        trial(state=states.FAIL, intermediate_values={1: 0.0}),
        trial(state=states.PRUNED),
    ]
    read = [t for t in trials if t.state != states.FAIL]
    found = ranked_results.of_one_objective(
        ranked_results.TrialReader().read(read), optuna.study.StudyDirection.MINIMIZE
    )
    assert len(found.pending) == 1
    expected = [[3.0, 1.0], [INF, NAN], [2.0, NAN], [INF, NAN]]
    assert np.array_equal(found.results, expected, equal_nan=True)
    flipped = ranked_results.of_one_objective(
        ranked_results.TrialReader().read(read[:1]), optuna.study.StudyDirection.MAXIMIZE
    )
    assert flipped.results.tolist() == [[-3.0, -1.0]]


def test_the_margin_of_a_trial_is_that_of_its_worst_constraint_whatever_the_units() -> None:
    carried = [[-2.0, -4e9], [1.0, -4e9], [-2.0, 8e9], None, [NAN, 0.0]]
    trials = [trial(value=1.0, system_attrs={} if one is None else {"constraints": one}) for one in carried]
    found = ranked_results.of_one_objective(
        ranked_results.TrialReader().read(trials), optuna.study.StudyDirection.MINIMIZE
    )
    margins = rung_belief.worst_margins(found.constraints)
    assert margins is not None
    assert np.allclose(margins, np.arcsinh([-1.0, 0.5, 2.0, NAN, np.sinh(3.0)]), equal_nan=True)
    only_whether = rung_belief.worst_margins(np.array([[0.0], [1.0], [0.0]]))
    assert only_whether is not None and list(only_whether > 0) == [False, True, False]
    assert only_whether[0] == -only_whether[1], "0 says that it holds, not that it barely holds"
    assert rung_belief.worst_margins(None) is None


def test_a_finite_space_is_listed_whole() -> None:
    space = {
        "a": IntDistribution(1, 7, step=2),
        "b": CategoricalDistribution(["u", "v"]),
        "c": FloatDistribution(0.1, 0.4, step=0.1),
        "d": IntDistribution(1, 5, log=True),
    }
    cube = UnitCube(space)
    listed = cube.listed()
    params = [cube.params(point) for point in listed]
    assert len(listed) == cube.size() == 4 * 2 * 4 * 5 == len({tuple(one.values()) for one in params})
    expected = [ranked_results.configuration(one, space) for one in params]
    assert cube.configurations(listed) == expected
    assert UnitCube(space | {"e": FloatDistribution(0, 1)}).size() == INF


def test_a_study_that_reports_each_step_has_few_rungs() -> None:
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(1, 200, 50).tolist(), 200]
    trials = [
        trial(
            state=optuna.trial.TrialState.PRUNED,
            intermediate_values={step: 1.0 / step for step in range(1, length + 1)},
        )
        for length in lengths
    ]
    found = ranked_results.of_one_objective(
        ranked_results.TrialReader().read(trials), optuna.study.StudyDirection.MINIMIZE
    )
    assert found.results.shape == (51, 6) and found.places.shape == (6,)
    assert not np.isnan(found.results).all(axis=1).any()
