"""RankedGPSampler: Optuna's interface to the sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from hpo_core.model.rng import derive_seed
from hpo_core.samplers.belief import Belief, Scored, scored_points
from hpo_core.samplers.gaussian_process import UnitCube
from hpo_core.samplers.ranked_results import (
    Configuration,
    Read,
    TrialReader,
    of_one_objective,
    of_several_objectives,
)

Array = NDArray[np.float64]


def as_active(points: Array, known: Array, cube: UnitCube) -> Array:
    """Blank out parameters that are likely inactive: those that the nearest known point does not have.

    Optuna's spaces are made as they are asked for, so conditions are seen only in what trials had. A different
    choice counts more than any distance in numbers, since conditions hang on choices.
    """
    missing = np.isnan(known)
    if not missing.any():
        return points
    always = ~missing.any(axis=0)
    apart = np.zeros((len(points), len(known)))
    for column in np.flatnonzero(always):
        a, b = points[:, column, None], known[None, :, column]
        apart += 10.0 * (a != b) if cube.choices[column] else (a - b) ** 2
    return np.where(missing[np.argmin(apart, axis=1)], np.nan, points)


_CANDIDATES = 200
_LISTED = 2_000
"""A space of at most so many configurations is gone through for those not tried."""


def candidates(
    cube: UnitCube, rng: np.random.Generator, known: Array, reads: Sequence[Read], drawn: Array | None = None
) -> tuple[Array, Array]:
    """Points, drawn evenly if none are given, and each with the parameters that are likely active. None was tried.

    Where all points of a finite space were tried, all that did not fail may be repeated.
    """
    if drawn is None:
        drawn = cube.draw(rng, _CANDIDATES)
    shown = as_active(drawn, known, cube)
    if cube.size() == math.inf:
        return drawn, shown
    listed, active = drawn[:0], shown[:0]
    for tried in ({read.configuration for read in reads}, {read.configuration for read in reads if read.failed}):
        fresh = _fresh(cube, shown, tried)
        if fresh.any():
            return drawn[fresh], shown[fresh]
        if cube.size() <= _LISTED:
            if not len(listed):
                listed = rng.permutation(cube.listed())
                active = as_active(listed, known, cube)
            fresh = _fresh(cube, active, tried)
            if fresh.any():
                return listed[fresh][:_CANDIDATES], active[fresh][:_CANDIDATES]
    return drawn, shown


def _fresh(cube: UnitCube, points: Array, tried: Set[Configuration]) -> NDArray[np.bool_]:
    return np.array([one not in tried for one in cube.configurations(points)], dtype=np.bool_)


def best_expected(cube: UnitCube, rng: np.random.Generator, known: Scored, reads: Sequence[Read]) -> Array:
    """The candidate with the largest expected improvement.

    Candidates are drawn evenly, and near the points that the model likes best: as many as it can be trusted there.
    """
    belief = Belief(cube, known)
    seen = np.concatenate([known.points, known.pending])
    points, shown = candidates(cube, rng, seen, reads)
    found = [(points, *belief.best(shown))]
    near = round(_CANDIDATES * belief.trust())
    if near:
        points, shown = candidates(cube, rng, seen, reads, belief.near(rng, near))
        found.append((points, *belief.best(shown)))
    points, at, _ = max(found, key=lambda one: one[2])
    chosen: Array = points[at]
    return chosen


_SHOWN = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING, TrialState.FAIL)


class RankedGPSampler(optuna.samplers.BaseSampler):
    """A Gaussian process on the ranks of results, whatever trials were trained to.

    A trial counts by the place of its latest value among those of all trials, be it an intermediate one or the last,
    and of a running trial too. So it works with any pruner, and with none. An answer depends on the trials that the
    study holds, the settings and the trial's number alone.

    - Spaces: one model of all parameters that any trial had, conditional ones too; the first trial is random.
    - Finite spaces: no configuration is proposed again before all were tried, failed ones too (in spaces of at most
      2,000, conditions included). After that those that did not fail are repeated, by expected improvement.
    - Constraints: expected improvement counts by the probability that none is violated.
    - Several objectives: a weighted one, with other weights for each trial (ParEGO).

    >>> study = optuna.create_study(sampler=RankedGPSampler(seed=1), pruner=optuna.pruners.SuccessiveHalvingPruner())

    Args:
        n_startup_trials: so many trials with results before the model is asked; None: 4 more than there are parameters.
        random_share: share of the later proposals that are drawn evenly all the same, from 0 to 1.
        seed: of all draws; None: one that the operating system gives.

    Raises:
        ValueError: a number out of its range.
    """

    def __init__(
        self, *, n_startup_trials: int | None = None, random_share: float = 0.1, seed: int | None = None
    ) -> None:
        if n_startup_trials is not None and (not isinstance(n_startup_trials, int) or n_startup_trials < 1):
            raise ValueError(f"n_startup_trials = {n_startup_trials!r} must be a whole number of at least 1, or None")
        if not isinstance(random_share, int | float) or not 0.0 <= random_share <= 1.0:
            raise ValueError(f"random_share = {random_share!r} must lie between 0 and 1")
        self._n_startup_trials = n_startup_trials
        self._random_share = random_share
        self._seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self._reader = TrialReader()
        self._fetched: tuple[FrozenTrial, list[FrozenTrial], list[Read]] | None = None
        """The trial that is asked for, and what was read for its search space: its proposal needs that, too."""
        self.turn: tuple[int, int] | None = None
        """(number, how often asked again) that draws are for, in place of the trial's own number."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": TrialReader(), "_fetched": None}

    def reseed_rng(self) -> None:
        """Draws depend on the trial's number, so that workers need no seeds of their own."""

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters of all trials, each as the latest trial had it; without those of one value."""
        trials = self._trials(study, trial)
        reads = self._reader.read(trials)
        self._fetched = (trial, trials, reads)
        found: dict[str, BaseDistribution] = {}
        latest = None
        for other in reversed(reads):
            if other.names is not latest and not other.names <= found.keys():
                found = {**other.distributions, **found}
            latest = other.names
        return {name: found[name] for name in sorted(found) if not found[name].single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        rng = self._generator(trial, "relative")
        cube = UnitCube(search_space)
        fetched, self._fetched = self._fetched, None
        if fetched is None or fetched[0] is not trial:  # another thread asked in between
            trials = self._trials(study, trial)
            fetched = (trial, trials, self._reader.read(trials))
        _, trials, reads = fetched
        if len(study.directions) == 1:
            known = of_one_objective(reads, study.directions[0])
        else:
            weights = rng.dirichlet(np.ones(len(study.directions)))
            known = of_several_objectives(trials, study.directions, weights)
        wanted = len(cube) + 4 if self._n_startup_trials is None else self._n_startup_trials
        if len(known.params) < wanted or rng.random() < self._random_share:
            shown = cube.points([read.params for read in reads[:_CANDIDATES]])
            return cube.params(candidates(cube, rng, shown, reads)[0][0])
        return cube.params(best_expected(cube, rng, scored_points(cube, known), reads))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        cube = UnitCube({param_name: param_distribution})
        return cube.params(cube.draw(self._generator(trial, f"independent/{param_name}"), 1)[0])[param_name]

    def _trials(self, study: optuna.Study, trial: FrozenTrial) -> list[FrozenTrial]:
        found = study.get_trials(deepcopy=False, states=_SHOWN)
        for at in range(len(found) - 1, -1, -1):
            if found[at].number == trial.number:
                del found[at]
                break
        return found

    def _generator(self, trial: FrozenTrial, purpose: str) -> np.random.Generator:
        number, again = self.turn or (trial.number, 0)
        purpose = f"ranked_gp/{purpose}/{again}" if again else f"ranked_gp/{purpose}"
        return np.random.Generator(np.random.PCG64(derive_seed(self._seed, purpose, number)))
