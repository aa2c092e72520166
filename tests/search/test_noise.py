"""Promotions that wait for a margin: what counts as noise, and when a candidate has to wait."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_core import Study
from hpo_core.model.events import JobCompleted
from hpo_core.model.trial import Rung
from hpo_core.search.asha import LEAST, WINDOW, Asha, NoiseEstimate
from hpo_core.search.rungs import LossRung
from hpo_core.spec import AshaSearch
from tests.conftest import completed, fresh, make_spec


def told(estimate: NoiseEstimate, trial: int, curve: Callable[[int], float], resources: tuple[int, ...]) -> None:
    """A trial reports at the first resource, its rung; then a job takes it along the others."""
    for rung, (points, level) in enumerate(((resources[:1], resources[0]), (resources[1:], resources[-1]))):
        points_of = tuple((at, curve(at)) for at in points)
        loss = points_of[-1][1] if math.isfinite(points_of[-1][1]) else None
        estimate.add(JobCompleted(trial, 0, Rung(0, rung), level, loss, {}, None, "", 0.0, 0.0, (), points_of))


def new_estimate() -> NoiseEstimate:
    estimate = NoiseEstimate.create("auto")
    assert estimate is not None
    return estimate


def test_noise_is_off_by_default_and_then_no_curves_are_read() -> None:
    search = AshaSearch(configs=9, max_resource=9)
    assert search.noise is None and NoiseEstimate.create(None) is None
    assert Asha(search).noise is None and not Asha(search).reads_curves
    assert not Asha(search.model_copy(update={"noise": 0.1})).reads_curves
    assert Asha(search.model_copy(update={"noise": "auto"})).reads_curves


def test_the_noise_of_a_difference_is_sqrt_2_times_that_of_a_loss() -> None:
    estimate = NoiseEstimate.create(0.3)
    assert estimate is not None
    assert estimate.of_difference(1) == estimate.of_difference(81) == pytest.approx(0.3 * math.sqrt(2))


@pytest.mark.parametrize("resources", [(1, 2, 3), (3, 4, 5, 6, 7, 8, 9), (100, 110, 140, 300)])
@pytest.mark.parametrize("sd", [0.001, 0.05])
def test_the_noise_of_noisy_curves_is_found(sd: float, resources: tuple[int, ...]) -> None:
    """Curves fall alike and steeply; between neighbours of 400 trials only noise is left."""
    estimate, draw = new_estimate(), random.Random(1)
    for trial in range(400):
        height = draw.random()
        told(estimate, trial, lambda at, height=height: height + 5 / at + draw.gauss(0, sd), resources)
    assert estimate.of_difference(resources[0]) == pytest.approx(math.sqrt(2) * sd, rel=0.25)
    assert estimate.of_difference(resources[-1]) == 0.0, "nobody went on from there"


def test_straight_differences_are_no_noise_whatever_the_spacing() -> None:
    estimate = new_estimate()
    for trial in range(LEAST + 1):
        told(estimate, trial, lambda at, trial=trial: trial * (1 + 0.125 * at), (1, 2, 5))
    assert estimate.of_difference(1) == pytest.approx(0.0, abs=1e-12)


def test_the_noise_of_bad_configurations_is_not_that_of_good_ones() -> None:
    """Three in four are good and calm, the others wild: neighbours are like each other, and the median is theirs."""
    estimate, draw = new_estimate(), random.Random(2)
    for trial in range(300):
        sd, height = (3.0, 100.0) if trial % 4 == 0 else (0.01, 1.0)
        told(estimate, trial, lambda at, sd=sd, height=height: height + draw.gauss(0, sd), (1, 2, 3))
    assert estimate.of_difference(1) < 0.03


def test_too_few_readings_count_as_no_noise() -> None:
    estimate, draw = new_estimate(), random.Random(3)
    for trial in range(LEAST):  # the first one has no neighbour
        told(estimate, trial, lambda _: draw.random(), (1, 2, 3))
    assert estimate.of_difference(1) == 0.0
    told(estimate, LEAST, lambda _: draw.random(), (1, 2, 3))
    assert estimate.of_difference(1) > 0.0


def test_only_the_latest_readings_count() -> None:
    estimate, draw = new_estimate(), random.Random(4)
    for trial in range(2 * WINDOW):
        told(estimate, trial, lambda _, sd=100.0 if trial < WINDOW // 2 else 0.0: 1.0 + sd * draw.random(), (1, 2, 3))
    assert estimate.of_difference(1) == 0.0


def test_a_job_from_scratch_gives_the_same_reading() -> None:
    resumed, scratch = new_estimate(), new_estimate()
    for trial in range(20):
        draw = random.Random(trial)
        losses = {at: draw.random() for at in (1, 2, 3)}
        told(resumed, trial, losses.__getitem__, (1, 2, 3))
        curve = ((1, losses[1]), (2, losses[2]), (3, losses[3]))
        for rung, level in ((0, 1), (1, 3)):
            event = JobCompleted(
                trial, 0, Rung(0, rung), level, losses[level], {}, None, "", 0.0, 0.0, (), curve[:level]
            )
            scratch.add(event)
    assert resumed.of_difference(1) == scratch.of_difference(1) > 0


def test_losses_that_are_not_finite_or_huge_leave_the_estimate_alone() -> None:
    calm, hit = new_estimate(), new_estimate()
    draw = random.Random(5)
    for trial in range(60):
        losses = {at: draw.random() for at in (1, 2, 3)}
        told(calm, trial, losses.__getitem__, (1, 2, 3))
        told(hit, 2 * trial, losses.__getitem__, (1, 2, 3))
        bad = draw.choice([math.nan, math.inf, -math.inf])
        told(hit, 2 * trial + 1, lambda at, bad=bad, worst=trial % 3 + 1: bad if at == worst else 1e308, (1, 2, 3))
    assert hit.of_difference(1) == pytest.approx(calm.of_difference(1))


def play(noise: Any, losses: list[float], configs: int) -> list[tuple[int, int]]:
    """(trial, target) in the order they were granted to one worker."""
    search = {"method": "asha", "configs": configs, "min_resource": 1, "max_resource": 3, "reduction_factor": 3}
    study: Study = fresh(make_spec(search=search | {"noise": noise}))
    granted = running = study.set_capacity(1)
    while running:
        running = study.tell_report(completed(running[0], losses[running[0].trial]))
        granted = granted + running
        study.check()
    return [(job.trial, job.target) for job in granted]


@pytest.mark.parametrize(("noise", "waits"), [(None, False), (0.07, False), (0.071, True), (0.5, True)])
def test_a_candidate_waits_unless_it_leads_by_more_than_the_noise(noise: float | None, waits: bool) -> None:
    """Trial 1 leads the best result outside the top third by 0.1, which is 0.0707 times sqrt(2)."""
    first, promotion, fourth = [(0, 1), (1, 1), (2, 1)], (1, 3), (3, 1)
    rest = [fourth, promotion] if waits else [promotion, fourth]
    assert play(noise, [0.5, 0.3, 0.4, 0.9], 4) == first + rest


def test_a_waiting_candidate_goes_once_it_leads_by_enough() -> None:
    """0.3 leads 0.4 by too little among three and among six; among nine the rest begins at 0.5."""
    granted = play(0.071, [0.5, 0.3, 0.4, 0.9, 0.9, 0.32, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9], 12)
    assert granted[:9] == [(trial, 1) for trial in range(9)]
    assert granted[9:11] == [(1, 3), (5, 3)], "0.32 leads by 0.18 as well"
    assert granted[11] == (9, 1), "0.4 does not: it leads by 0.1"


def test_noise_delays_promotions_but_loses_none() -> None:
    draw = random.Random(6)
    losses = [draw.random() for _ in range(60)]
    last = sorted(range(60), key=losses.__getitem__)[:20]
    for noise in (None, 0.01, 10.0):
        granted = play(noise, losses, 60)
        promoted = {trial for trial, target in granted if target == 3}
        assert set(last) <= promoted, "the best third of all goes on in the end"
        if noise == 10.0:
            assert promoted == set(last) and granted[:60] == [(trial, 1) for trial in range(60)]


@given(st.lists(st.sampled_from([0.0, 0.5, 0.5, 1.0, 3.0, math.inf]), min_size=1, max_size=20), st.integers(0, 3))
def test_margin_is_what_the_candidate_leads_the_rest_by(values: list[float], promote: int) -> None:
    rung = LossRung(1, 3)
    for trial, value in enumerate(values):
        rung.add(trial, None if value == math.inf else value)
    for _ in range(promote):
        candidate = rung.candidate()
        if candidate is not None:
            rung.promote(candidate)
    candidate = rung.candidate()
    outside = sorted((value, trial) for trial, value in enumerate(values))[len(values) // 3 :]
    expected = math.inf if candidate is None else outside[0][0] - values[candidate]
    assert rung.margin() == expected
