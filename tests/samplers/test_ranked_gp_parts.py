"""The parts of ranked_gp: its belief, the Gaussian process, places of values."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution

from hpo_core.samplers import belief, gaussian_process
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


def trial(**more: object) -> optuna.trial.FrozenTrial:
    return optuna.trial.create_trial(**{"params": {}, "distributions": {}} | more)  # type: ignore[arg-type]
