"""Trials of an Optuna study as results by rung: the data of ``ranked_gp``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

Array = NDArray[np.float64]

_MOST_RUNGS = 6
_FINAL = math.inf
"""Rung of a value that was not reported as an intermediate one."""
_PACKED = 3 * 8
"""Bytes of one result."""
PAST = "hpo:past"
"""System attribute of trials that are from an earlier study."""


class Results(NamedTuple):
    """Trials with results, and those whose first result is awaited."""

    params: Sequence[Mapping[str, Any]]
    results: Array
    """A row per trial, a column per rung from the lowest on; low is good; NaN: not there; inf: diverged."""
    places: Array
    """Place of each rung from 0 to 1, by the logarithm of its step."""
    past: NDArray[np.bool_]
    """Which are from earlier studies, so that their losses may be on another scale."""
    pending: Sequence[Mapping[str, Any]]
    constraints: Array | None
    """A row per trial: its constraints, at most 0 where they hold; NaN: not known. None: no trial has any."""


Configuration = frozenset[tuple[str, float]]
"""Values of parameters as Optuna's numbers, without those that can have only one."""


class Read(NamedTuple):
    """The results of one trial, packed."""

    params: Mapping[str, Any]
    names: frozenset[str]
    """Names of its parameters; the same object for the same names."""
    distributions: Mapping[str, BaseDistribution]
    packed: bytes
    """For each result three floats: step, value, 1 for a trial of an earlier study. Bytes of a thousand trials are
    joined ten times as fast as their numbers are made an array."""
    constraints: tuple[float, ...]
    awaited: bool
    """Whether its first result is awaited."""
    failed: bool
    configuration: Configuration


class TrialReader:
    """Reads trials; of those that have ended it keeps what it read, as long as they are the same objects."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[FrozenTrial, Read]] = {}
        self._names: dict[frozenset[str], frozenset[str]] = {}

    def read(self, trials: Sequence[FrozenTrial]) -> list[Read]:
        """Read trials; the order stays."""
        kept = self._kept
        if len(kept) > 2 * len(trials) + 100:  # most are no longer shown
            kept = self._kept = {id(trial): kept[id(trial)] for trial in trials if id(trial) in kept}
        found = []
        for trial in trials:
            known = kept.get(id(trial))  # it holds the trial, so that nothing else has this id
            if known is not None:
                found.append(known[1])
                continue
            one = self._read(trial)
            found.append(one)
            if trial.state.is_finished():
                kept[id(trial)] = (trial, one)
        return found

    def _read(self, trial: FrozenTrial) -> Read:
        found = {float(step): value for step, value in list(trial.intermediate_values.items())}
        if trial.state == TrialState.COMPLETE:
            assert trial.values is not None
            if not found or found[max(found)] != trial.values[0]:
                found[_FINAL] = trial.values[0]
        elif trial.state == TrialState.PRUNED and not found:
            found[-_FINAL] = math.nan
        distributions = trial.distributions
        names = frozenset(distributions)
        if trial.state == TrialState.FAIL:
            found = {}
        past = float(PAST in trial.system_attrs)
        packed = np.array([(step, value, past) for step, value in found.items()], dtype=np.float64).tobytes()
        return Read(
            trial.params,
            self._names.setdefault(names, names),
            distributions,
            packed,
            constraints_of(trial),
            trial.state == TrialState.RUNNING and not found,
            trial.state == TrialState.FAIL,
            configuration(trial.params, distributions),
        )


def configuration(params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> Configuration:
    """Return what tells configurations apart, whatever was rounded on the way."""
    return frozenset(
        (name, float(f"{one.to_internal_repr(params[name]):.12g}"))
        for name, one in distributions.items()
        if not one.single()
    )


def of_one_objective(reads: Sequence[Read], direction: StudyDirection) -> Results:
    """Intermediate values of all trials, and values of complete ones. Failed trials say nothing.

    A pruned trial without a value is the worst of the lowest rung.
    """
    packed = [read.packed for read in reads]
    counts = np.fromiter(map(len, packed), np.intp, len(packed)) // _PACKED
    counts = counts[counts > 0]
    steps, losses, past = np.frombuffer(b"".join(packed)).reshape(-1, 3).T
    losses = -losses if direction == StudyDirection.MAXIMIZE else losses.copy()
    losses[np.isnan(losses)] = math.inf
    first = np.cumsum(counts) - counts
    results, rungs = by_rung(np.repeat(np.arange(len(counts)), counts), steps, losses)
    shown = [read for read in reads if read.packed]
    params, pending = [read.params for read in shown], [read.params for read in reads if read.awaited]
    return Results(
        params, results, places_of(rungs), past[first] > 0, pending, _joined([read.constraints for read in shown])
    )


def of_several_objectives(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection], weights: Array
) -> Results:
    """One result per complete trial: the largest of its weighted places, objective by objective.

    That is ParEGO (Knowles 2006) on places: with other weights each time, the whole front is approached.
    """
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    params = [trial.params for trial in done]
    pending = [trial.params for trial in trials if trial.state == TrialState.RUNNING]
    if not done:
        return Results([], np.zeros((0, 1)), np.zeros(1), np.zeros(0, dtype=np.bool_), pending, None)
    signs = [-1.0 if direction == StudyDirection.MAXIMIZE else 1.0 for direction in directions]
    losses = np.array([trial.values for trial in done]) * signs
    places = (losses[:, None, :] > losses[None, :, :]).mean(axis=1) * weights
    joined = places.max(axis=1) + 0.05 * places.sum(axis=1)
    past = np.array([PAST in trial.system_attrs for trial in done], dtype=np.bool_)
    return Results(
        params, joined[:, None], np.zeros(1), past, pending, _joined([constraints_of(trial) for trial in done])
    )


def constraints_of(trial: FrozenTrial) -> tuple[float, ...]:
    """Return the constraints that a trial carries (Optuna 5: ``trial.set_constraint``)."""
    attrs = trial.system_attrs
    if not attrs:
        return ()
    found = list(attrs.get("constraints") or ())
    found += [value for name, value in attrs.items() if name.startswith("constraints:")]
    return tuple(math.inf if math.isnan(value) else float(value) for value in found)


def _joined(constraints: Sequence[tuple[float, ...]]) -> Array | None:
    most = max(map(len, constraints), default=0)
    if not most:
        return None
    return np.array([one if len(one) == most else (math.nan,) * most for one in constraints])


def by_rung(rows: NDArray[np.intp], steps: Array, losses: Array) -> tuple[Array, Array]:
    """A row per trial and a column per step, from the lowest on, of results given by row and step; and the steps."""
    rungs = np.array(sorted(set(steps.tolist())) or [1.0])
    table = np.full((int(rows.max(initial=-1)) + 1, len(rungs)), np.nan)
    table[rows, np.searchsorted(rungs, steps)] = losses
    if rungs[0] == -_FINAL and len(rungs) > 1:  # worst of the lowest rung
        table[~np.isnan(table[:, 0]), 1] = math.inf
        table, rungs = table[:, 1:], rungs[1:]
    return _thinned(table, rungs)


def places_of(steps: Array) -> Array:
    """Steps from 0 to 1, by the logarithm of their distance to half a gap below the lowest."""
    finite = steps[np.isfinite(steps)]
    found = np.zeros(len(finite))
    if len(finite) > 1:
        found = np.log1p(2.0 * (finite - finite[0]) / (finite[1] - finite[0]))
    for _ in range(len(steps) - len(finite)):
        found = np.append(found, found[-1] + found[-1] / (len(found) - 1) if len(found) > 1 else float(len(found)))
    highest = found.max()
    scaled: Array = found / highest if highest else found
    return scaled


def _thinned(table: Array, steps: Array) -> tuple[Array, Array]:
    """Keep at most 6 columns, those where many trials ended, so that a study that reports each step is not dear."""
    if table.shape[1] <= _MOST_RUNGS:
        return table, steps
    last = table.shape[1] - 1 - np.argmax(~np.isnan(table[:, ::-1]), axis=1)
    ended = np.bincount(last, minlength=table.shape[1])
    ended[[0, -1]] = len(table) + 1
    kept = np.sort(np.argsort(-ended, kind="stable")[:_MOST_RUNGS])
    thinned = table[:, kept]  # a trial that ended between two kept rungs counts by its result at the lower one
    lost = np.flatnonzero(np.isnan(thinned).all(axis=1))
    thinned[lost, 0] = table[lost, last[lost]]  # it reported on none of them
    return thinned, steps[kept]
