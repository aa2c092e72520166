"""RankedGPSampler: Optuna's interface to the sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from hpo_core.model.rng import derive_seed
from hpo_core.samplers.gaussian_process import Data, Posterior, UnitCube, fit
from hpo_core.samplers.ranked_results import (
    Configuration,
    Read,
    Results,
    TrialReader,
    of_one_objective,
    of_several_objectives,
    scored,
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


_MOST = 150
"""Points of this study in the Gaussian process: half of them the best, the others spread evenly over the rest."""
_FITTED = 64
"""Points to which its settings are fitted."""
_STEPS = 5
_CANDIDATES = 200
_SHORTLIST = 40
"""Candidates with the lowest means, of which expected improvement is computed; as many of each kind."""
_LISTED = 2_000
"""A space of at most so many configurations is gone through for those not tried."""
_EXCESS = 0.5
"""Noise, beyond the common one, of a score that says nothing of the highest rung."""
_PAST, _PAST_GROWTH = 0.3, 0.05
"""Noise of a score of an earlier study; it grows with each result of this one, so that what is foreign fades."""
_PAST_MOST = 50
"""The best points of earlier studies that are used."""
_WORST_MARGIN = 3.0


class Scored(NamedTuple):
    """The points of the model, best first, those of earlier studies last; and those whose first result is awaited.

    Points that violate constraints come after those of the same study that do not.
    """

    points: Array
    scores: Array
    """Low is good."""
    excess: Array
    """Noise of a score beyond that of all."""
    own: int
    """Number of points of this study."""
    pending: Array
    margins: Array | None
    """By how much each violates its worst constraint, scaled; at most 0: none. NaN: not known. None: no constraints."""


def scored_points(cube: UnitCube, known: Results) -> Scored:
    """At most 150 points with scores, and 50 of earlier studies, which are ranked among themselves."""
    own = int((~known.past).sum())
    margins = worst_margins(known.constraints)
    violating = np.zeros(len(known.past)) if margins is None else np.nan_to_num(margins) > 0
    chosen, scores, excess = [], [], []
    for group, most, noise in ((~known.past, _MOST, 0.0), (known.past, _PAST_MOST, _PAST + _PAST_GROWTH * own)):
        values, agreement = scored(known.results[group])
        order = _some(np.lexsort((values, violating[group])), most)
        chosen.append(np.flatnonzero(group)[order])
        scores.append(values[order])
        excess.append(_EXCESS * (1.0 - agreement[order] ** 2) + noise)
    used = np.concatenate(chosen)
    points = cube.points([known.params[at] for at in used.tolist()] + list(known.pending))
    shares = np.concatenate(scores), np.concatenate(excess), len(chosen[0])
    return Scored(points[: len(used)], *shares, points[len(used) :], None if margins is None else margins[used])


def worst_margins(constraints: Array | None) -> Array | None:
    """The largest of a trial's constraints, each in units of its median size; from -3 to 3."""
    if constraints is None:
        return None
    scaled = np.empty_like(constraints)
    for column, values in enumerate(constraints.T):
        sizes = np.abs(values[np.isfinite(values) & (values != 0.0)])
        scaled[:, column] = values / (np.median(sizes) if len(sizes) else 1.0)
        if not (values < 0.0).any():  # such as 0 and 1: whether, not by how much
            scaled[values == 0.0, column] = -1.0
    found: Array = np.clip(np.arcsinh(scaled.max(axis=1)), -_WORST_MARGIN, _WORST_MARGIN)
    return found


def candidates(cube: UnitCube, rng: np.random.Generator, known: Array, reads: Sequence[Read]) -> tuple[Array, Array]:
    """Drawn points, at least one, and each with the parameters that are likely active. None was tried.

    Where all points of a finite space were tried, all that did not fail may be repeated.
    """
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


class Model:
    """Expected improvement by the scores, times the probability that no constraint is violated."""

    def __init__(self, cube: UnitCube, known: Scored) -> None:
        self._cube, self._known = cube, known
        self._features, self._awaited = cube.features(known.points), cube.features(known.pending)
        self.scores = self._fitted(known.scores, known.excess, np.arange(len(known.scores)))
        self.margins, self._best = None, float(known.scores[0])
        if known.margins is not None:
            with_margins = np.flatnonzero(~np.isnan(known.margins))
            self.margins = self._fitted(known.margins[with_margins], np.zeros(len(with_margins)), with_margins)
            feasible = known.scores[~(known.margins > 0.0)]
            self._best = float(feasible.min()) if len(feasible) else math.inf

    def _fitted(self, values: Array, excess: Array, rows: NDArray[np.intp]) -> Posterior:
        features, own = self._features[rows], int((rows < self._known.own).sum())
        past = np.arange(own, len(rows))[: max(0, _FITTED - own)]
        some = np.concatenate([_some(np.arange(own), _FITTED), past])
        owner = self._cube.owner
        settings = fit(Data(features[some], owner, values[some], excess[some]), len(self._cube), _STEPS)
        return Posterior(Data(features, owner, values, excess), settings)

    def best(self, points: Array) -> tuple[int, float]:
        """The most promising point, and how promising it is."""
        shown = self._cube.features(points)
        means, cross = self.scores.mean(shown)
        wanted = means
        if self.margins is not None:
            margins, margin_cross = self.margins.mean(shown)
            wanted = np.where(np.isinf(self._best), 0.0, means) + np.maximum(margins, 0.0)
        short = np.argsort(wanted, kind="stable")[:_SHORTLIST]
        gains = np.ones(len(short))
        if self._best < math.inf:
            deviations = self.scores.deviation(shown[short], cross[short], self._awaited)
            gains = _expected_improvement(means[short], deviations, self._best)
        if self.margins is not None:
            deviations = self.margins.deviation(shown[short], margin_cross[short], self._awaited[:0])
            gains = gains * _below(-margins[short] / deviations)
        at = int(np.argmax(gains))
        return int(short[at]), float(gains[at])


def best_expected(cube: UnitCube, rng: np.random.Generator, known: Scored, reads: Sequence[Read]) -> Array:
    """The candidate with the largest expected improvement."""
    model = Model(cube, known)
    points, shown = candidates(cube, rng, np.concatenate([known.points, known.pending]), reads)
    chosen: Array = points[model.best(shown)[0]]
    return chosen


def _some(order: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    if len(order) <= most:
        return order
    best, rest = order[: most // 2], order[most // 2 :]
    spread = np.linspace(0, len(rest) - 1, most - len(best)).round().astype(np.intp)
    return np.concatenate([best, rest[spread]])


def _below(deviations: Array) -> Array:
    """The standard normal distribution function."""
    return np.array([0.5 * math.erfc(-one / math.sqrt(2.0)) for one in deviations])


def _expected_improvement(means: Array, deviations: Array, best: float) -> Array:
    by = (best - means) / deviations
    found: Array = deviations * (by * _below(by) + np.exp(-0.5 * by * by) / math.sqrt(2.0 * math.pi))
    return found


_SHOWN = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING, TrialState.FAIL)


class RankedGPSampler(optuna.samplers.BaseSampler):
    """A Gaussian process on the ranks of results, across rungs.

    Intermediate values are results at lower fidelities, those of running trials too: on each step results are ranked,
    and a trial counts once, by its place on its highest step. So it works with any pruner, and with none. An answer
    depends on the trials that the study holds, the settings and the trial's number alone.

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
            shown = cube.points([read.params for read in reads][:_MOST])
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
