"""The parts of ranked_gp: ranks across rungs, the Gaussian process, places of values."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from hpo_core.samplers import gaussian_process, ranked_gp, ranked_results
from hpo_core.samplers.gaussian_process import UnitCube
from hpo_core.samplers.ranked_results import scored

NAN, INF = float("nan"), float("inf")


def test_on_one_rung_a_score_is_the_normal_quantile_of_the_place() -> None:
    scores = scored(np.array([[5.0], [INF], [1.0], [NAN], [3.0]]))
    expected = [NormalDist().inv_cdf((place + 0.5) / 4) for place in (2, 3, 0, 1)]
    assert np.allclose(scores.values[[0, 1, 2, 4]], expected) and np.isnan(scores.values[3])
    ties = scored(np.array([[1.0], [1.0], [2.0]])).values
    assert ties[0] == ties[1] < ties[2]


def climbing(agree: float, seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """81 trials, of which the best third goes on, twice; rungs are on scales of their own."""
    rng = np.random.default_rng(seed)
    table = np.full((81, 3), NAN)
    table[:, 0] = rng.normal(size=81)
    for rung in (1, 2):
        best = np.argsort(np.nan_to_num(table[:, rung - 1], nan=INF))[: 81 // 3**rung]
        below = table[best, 0]
        table[best, rung] = 100 * rung + agree * below + np.sqrt(1 - agree**2) * rng.normal(size=len(best))
    return table


def test_survivors_of_rungs_that_agree_are_ahead_of_all_others() -> None:
    table = climbing(1.0)
    scores = scored(table)
    order = np.argsort(scores.values)
    top, low = ~np.isnan(table[:, 2]), np.isnan(table[:, 1])
    assert [at for at in order if top[at]] == list(np.argsort(table[:, 2])[:9]), "in the order of the highest rung"
    first = int(np.nanargmin(table[:, 2]))
    assert order[0] == first
    assert scores.values[top].mean() < scores.values[~top & ~low].mean() < scores.values[low].mean()
    assert (scores.agreement[top] == 1.0).all()


def test_rungs_that_contradict_each_other_are_told_apart() -> None:
    lowest = [np.isnan(climbing(agree)[:, 1]) for agree in (1.0, -0.9)]
    good, bad = (scored(climbing(agree)).agreement[low].mean() for agree, low in zip((1.0, -0.9), lowest, strict=True))
    assert bad < 0.6 < 0.8 < good
    spread = scored(climbing(-0.9)).values[~np.isnan(climbing(-0.9)[:, 1])]
    assert spread.max() > 0, "bad ones of those that went on are not taken for good ones any more"


def test_scores_do_not_depend_on_the_scale_of_the_metric() -> None:
    table = climbing(0.7)
    one, two = scored(table), scored(np.exp(table / 20) * 1e6)
    assert np.array_equal(one.values, two.values, equal_nan=True)


def test_the_gradient_of_the_likelihood_is_that_of_differences() -> None:
    rng = np.random.default_rng(1)
    features = rng.random((30, 4))
    data = gaussian_process.Data(features, np.array([0, 1, 2, 2]), rng.normal(size=30), 0.2 * rng.random(30))
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
    data = gaussian_process.Data(features, np.arange(3), scores, np.zeros(60))
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
    data = gaussian_process.Data(features, np.arange(2), np.sin(5 * features[:, 0]), np.zeros(30))
    settings = gaussian_process.fit(data, 2, 5)
    model = gaussian_process.Posterior(data, settings)
    longer = gaussian_process.Data(
        np.concatenate([features, awaited]),
        data.owner,
        np.concatenate([data.scores, model.mean(awaited)[0]]),
        np.zeros(34),
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
    margins = ranked_gp.worst_margins(found.constraints)
    assert margins is not None
    assert np.allclose(margins, np.arcsinh([-1.0, 0.5, 2.0, NAN, np.sinh(3.0)]), equal_nan=True)
    only_whether = ranked_gp.worst_margins(np.array([[0.0], [1.0], [0.0]]))
    assert only_whether is not None and list(only_whether > 0) == [False, True, False]
    assert only_whether[0] == -only_whether[1], "0 says that it holds, not that it barely holds"
    assert ranked_gp.worst_margins(None) is None


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
    assert found.results.shape == (51, 16)
    assert not np.isnan(scored(found.results).values).any()
