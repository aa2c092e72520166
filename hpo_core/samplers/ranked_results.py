"""Trials of an Optuna study as results: the data of ``ranked_gp``."""

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

PAST = "hpo:past"
"""System attribute of trials that are from an earlier study."""


class Results(NamedTuple):
    """Trials with results, and those whose first result is awaited."""

    params: Sequence[Mapping[str, Any]]
    losses: Array
    """The latest of each trial; inf: diverged."""
    past: NDArray[np.bool_]
    """Which are from earlier studies, so that their losses may be on another scale."""
    pending: Sequence[Mapping[str, Any]]
    constraints: Array | None
    """A row per trial: its constraints, at most 0 where they hold; NaN: not known. None: no trial has any."""


Configuration = frozenset[tuple[str, float]]
"""Values of parameters as Optuna's numbers, without those that can have only one."""


class Read(NamedTuple):
    """The results of one trial, as read by the model."""

    params: Mapping[str, Any]
    names: frozenset[str]
    """Names of its parameters; the same object for the same names."""
    distributions: Mapping[str, BaseDistribution]
    value: float | None
    """The latest; NaN: it was pruned without one, or diverged; None: there is none (yet)."""
    past: bool
    """Whether it is from an earlier study."""
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
        values = dict(trial.intermediate_values)
        latest = values[max(values)] if values else None
        if trial.state == TrialState.COMPLETE:
            latest = trial.values[0]
        elif trial.state == TrialState.PRUNED and not values:
            latest = math.nan
        elif trial.state == TrialState.FAIL:
            latest = None
        names = frozenset(trial.distributions)
        return Read(
            trial.params,
            self._names.setdefault(names, names),
            trial.distributions,
            latest,
            PAST in trial.system_attrs,
            constraints_of(trial),
            trial.state == TrialState.RUNNING and latest is None,
            trial.state == TrialState.FAIL,
            configuration(trial.params, trial.distributions),
        )


def configuration(params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> Configuration:
    """Return what tells configurations apart, whatever was rounded on the way."""
    return frozenset(
        (name, float(f"{one.to_internal_repr(params[name]):.12g}"))
        for name, one in distributions.items()
        if not one.single()
    )


def of_one_objective(reads: Sequence[Read], direction: StudyDirection) -> Results:
    shown = [read for read in reads if read.value is not None]
    losses = np.array([read.value for read in shown], dtype=np.float64)
    if direction == StudyDirection.MAXIMIZE:
        losses = -losses
    losses[np.isnan(losses)] = math.inf
    return Results(
        [read.params for read in shown],
        losses,
        np.array([read.past for read in shown], dtype=np.bool_),
        [read.params for read in reads if read.awaited],
        _joined([read.constraints for read in shown]),
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
        return Results([], np.zeros(0), np.zeros(0, dtype=np.bool_), pending, None)
    signs = [-1.0 if direction == StudyDirection.MAXIMIZE else 1.0 for direction in directions]
    losses = np.array([trial.values for trial in done]) * signs
    places = (losses[:, None, :] > losses[None, :, :]).mean(axis=1) * weights
    joined = places.max(axis=1) + 0.05 * places.sum(axis=1)
    past = np.array([PAST in trial.system_attrs for trial in done], dtype=np.bool_)
    return Results(params, joined, past, pending, _joined([constraints_of(trial) for trial in done]))


def constraints_of(trial: FrozenTrial) -> tuple[float, ...]:
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
