"""RankedGPSampler under the tests that Optuna gives to authors of samplers."""

from __future__ import annotations

from collections.abc import Callable

import optuna
import pytest

from hpo_core.samplers.ranked_gp import RankedGPSampler

pytest_samplers = pytest.importorskip("optuna.testing.pytest_samplers", reason="Optuna 4 has no tests for samplers")

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


class _Made:
    @pytest.fixture
    def sampler(self) -> Callable[[], optuna.samplers.BaseSampler]:
        return lambda: RankedGPSampler(n_startup_trials=1, random_share=0.0, seed=0)


class TestBasic(_Made, pytest_samplers.BasicSamplerTestCase):  # type: ignore[name-defined, misc]
    """Values of every distribution, conditions, NaN, single values, ranges that change."""


class TestRelative(_Made, pytest_samplers.RelativeSamplerTestCase):  # type: ignore[name-defined, misc]
    """Proposals of the model: in their ranges, and of Python's own types."""


class TestSeveralObjectives(_Made, pytest_samplers.MultiObjectiveSamplerTestCase):  # type: ignore[name-defined, misc]
    """Several objectives."""
