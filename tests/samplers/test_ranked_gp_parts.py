"""The parts of ranked_gp: its belief, the Gaussian process, places of values."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from hpo_core.samplers import belief, gaussian_process, ranked_results
from hpo_core.samplers.gaussian_process import UnitCube
from hpo_core.samplers.ranked_results import Results

Array = NDArray[np.float64]

NAN, INF = float("nan"), float("inf")


CUBE = UnitCube({"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)})


def results(losses: Array, at: Array, past: NDArray[np.bool_] | None = None) -> Results:
    params = [{"x": float(x), "y": 0.5} for x in at]
    return Results(params, losses, np.zeros(len(at), dtype=np.bool_) if past is None else past, [], None)


def test_scores_are_normal_quantiles_of_places() -> None:
    losses = np.array([2.0, INF, 1.0, 3.0])
    found = belief.scored_points(CUBE, results(losses, np.arange(4) / 4))
    assert np.allclose(found.scores, [NormalDist().inv_cdf((place + 0.5) / 4) for place in range(4)])
    assert found.points[:, 0].tolist() == [0.5, 0.0, 0.75, 0.25], "the best trial first"
    scaled = belief.scored_points(CUBE, results(np.exp(losses) * 1e6, np.arange(4) / 4))
    assert np.array_equal(scaled.scores, found.scores)
    assert belief.places_of(np.array([1.0, 1.0, 2.0])).tolist() == [1 / 3, 1 / 3, 2.5 / 3]
    assert len(belief.places_of(np.zeros(0))) == 0


def expected(losses: Array, at: Array, asked: list[float], **more: Any) -> Array:
    found = belief.Belief(CUBE, belief.scored_points(CUBE, results(losses, at, **more)))
    points = CUBE.points([{"x": x, "y": 0.5} for x in asked])
    means, _ = found.scores.mean(found._here(CUBE.features(points)))
    return means


def test_an_earlier_study_that_contradicts_is_not_believed() -> None:
    rng = np.random.default_rng(1)
    at = rng.random(60)
    past = np.arange(60) >= 20

    def means(flipped: bool) -> Array:
        losses = (at - 0.8) ** 2 * np.where(past & flipped, -1.0, 1.0)
        return expected(losses, at, [0.8, 0.1], past=past)

    assert means(False)[0] < means(False)[1]
    assert means(True)[0] < means(True)[1]


def test_residuals_of_left_out_points_are_those_of_a_model_without_them() -> None:
    rng = np.random.default_rng(4)
    features, owner = rng.random((20, 2)), np.arange(2)
    scores = np.sin(5 * features[:, 0]) + 0.1 * rng.normal(size=20)
    data = gaussian_process.Data(features, owner, scores)
    settings = gaussian_process.fit(data, 5)
    found = gaussian_process.Posterior(data, settings).left_out()
    for one in range(20):
        rest = np.arange(20) != one
        model = gaussian_process.Posterior(gaussian_process.Data(features[rest], owner, scores[rest]), settings)
        assert np.allclose(found[~rest], scores[~rest] - model.mean(features[~rest])[0], atol=1e-5)


def test_local_candidates_are_trusted_where_the_model_knows_the_best_points() -> None:
    at = np.linspace(0, 1, 60)
    smooth = belief.Belief(CUBE, belief.scored_points(CUBE, results((at - 0.4) ** 2, at)))
    noise = np.random.default_rng(0).normal(size=60)
    blind = belief.Belief(CUBE, belief.scored_points(CUBE, results(noise, at)))
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
    settings = gaussian_process.fit(data, 5)
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
    settings = gaussian_process.fit(data, 5)
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


def test_a_trial_counts_by_its_latest_value() -> None:
    states = optuna.trial.TrialState
    trials = [
        trial(value=1.0, intermediate_values={1: 3.0, 9: 1.5}),
        trial(state=states.PRUNED, intermediate_values={9: NAN, 1: 0.5}),
        trial(state=states.RUNNING, intermediate_values={3: 2.0, 1: 4.0}),
        trial(state=states.RUNNING),
        trial(state=states.FAIL, intermediate_values={1: 0.0}),
        trial(state=states.PRUNED, system_attrs={ranked_results.PAST: True}),
    ]
    read = ranked_results.TrialReader().read(trials)
    found = ranked_results.of_one_objective(read, optuna.study.StudyDirection.MINIMIZE)
    assert found.losses.tolist() == [1.0, INF, 2.0, INF]
    assert found.past.tolist() == [False, False, False, True]
    assert len(found.params) == 4 and len(found.pending) == 1
    flipped = ranked_results.of_one_objective(read, optuna.study.StudyDirection.MAXIMIZE)
    assert flipped.losses.tolist() == [-1.0, INF, -2.0, INF]


def test_the_margin_of_a_trial_is_that_of_its_worst_constraint_whatever_the_units() -> None:
    carried = [[-2.0, -4e9], [1.0, -4e9], [-2.0, 8e9], None, [NAN, 0.0]]
    trials = [trial(value=1.0, system_attrs={} if one is None else {"constraints": one}) for one in carried]
    found = ranked_results.of_one_objective(
        ranked_results.TrialReader().read(trials), optuna.study.StudyDirection.MINIMIZE
    )
    margins = belief.worst_margins(found.constraints)
    assert margins is not None
    assert np.allclose(margins, np.arcsinh([-1.0, 0.5, 2.0, NAN, np.sinh(3.0)]), equal_nan=True)
    only_whether = belief.worst_margins(np.array([[0.0], [1.0], [0.0]]))
    assert only_whether is not None and list(only_whether > 0) == [False, True, False]
    assert only_whether[0] == -only_whether[1], "0 says that it holds, not that it barely holds"
    assert belief.worst_margins(None) is None


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
