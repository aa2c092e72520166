"""Any sampler of Optuna as an oracle.

An Optuna study in memory mirrors ours; its sampler is asked through Optuna's public define-by-run interface,
so conditional spaces work. Trials never end inside Optuna: a trial paused at a rung may be promoted later,
which Optuna's storage has no word for. Instead the storage shows each trial as our state has it now. To TPE,
which understands pruning, results at the full resource are COMPLETE and results at lower rungs PRUNED with
their intermediate values (TPE ranks them by resource first, then value). Other samplers learn from COMPLETE
trials alone, so to them the model level is the highest rung with enough results (Falkner et al. 2018, BOHB):
trials that reached it are COMPLETE with their value there. Abandoned trials are FAIL, the rest RUNNING; but one that
was given up because it ran out of memory is PRUNED without a value, the worst there is to TPE (it leaves FAIL
out). Enough are as many as the sampler wants before it leaves its random start, and two more than there are parameters.

With several objectives Optuna has no pruning, so to every sampler, TPE as well, the model level applies, and
trials without finite values there are FAIL. Without a maximum resource no result is at the full one: to TPE with
one objective all are PRUNED, which it ranks as above; the others know no full resource anyway.

The sampler is built anew for each trial with a seed derived from (study seed, trial number), so an answer
depends on the recorded history and the number alone, not on what this process happened to draw before.
A sampler whose seed names one fixed sequence (QMC) keeps the study's seed. Those that try a finite list are
:class:`~hpo_core.samplers.sampler.FiniteSampler`.

Constraints are shown with the results, as Optuna's own studies keep them; TPE, GP and NSGA use them, the others do not.

With a warm start the storage begins with trials of earlier studies, a decayed share of them (the spec holds which).
Their losses are not comparable where the data changed, so as soon as a configuration was trained in both, they are
shifted at each resource by the median difference there, or at the nearest resource that has one.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections import deque
from collections.abc import Container, Mapping
from datetime import datetime
from statistics import median
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from hpo_core.model.events import (
    AttemptFailed,
    ConfigurationEnqueued,
    Event,
    JobCompleted,
    TrialAbandoned,
    TrialCreated,
)
from hpo_core.model.rng import Stream, derive_seed
from hpo_core.model.short_text import listed_and_meant, meant_or_known
from hpo_core.model.space.search_space import distributions, given_values, seen, suggest
from hpo_core.model.trial import Outcome, Params
from hpo_core.samplers.sampler import SamplerContext


class MirrorStorage(optuna.storages.InMemoryStorage):
    """Optuna's own storage; samplers see a trial of :attr:`view` in place of the stored one, and none that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.view: dict[int, FrozenTrial | None] = {}

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if states == (TrialState.WAITING,):  # Optuna looks for one at each ask; here none ever waits
            return []
        trials = super().get_all_trials(study_id, deepcopy=False)  # by number, from 0 on
        shown = list(map(self.view.get, range(len(trials)), trials))
        return [trial for trial in shown if trial is not None and (states is None or trial.state in states)]

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        """System attributes of the shown trial: GPSampler of Optuna 4 reads the constraints here."""
        stored: FrozenTrial = super().get_trial(trial_id)
        shown = self.view.get(stored.number) or stored
        return {**shown.system_attrs, **stored.system_attrs}


_NOT_OFFERED = {
    "BaseSampler": "it is what samplers are made of, and proposes nothing",
    "BaseGASampler": "it is what genetic samplers are made of, and proposes nothing",
    "PartialFixedSampler": "leave a fixed parameter out of the space, or give it one value there",
}
_FIXED_SEQUENCE = {"QMCSampler"}
_STATEFUL = _FIXED_SEQUENCE | {"CmaEsSampler", "NSGAIISampler", "NSGAIIISampler"}
_KNOWS_PRUNING = {"TPESampler"}
_MOST_ASKS = 100
"""A sampler that answers with a forbidden combination is asked again so often; then a configuration is drawn."""
_ENDLESS = 2**62
"""The full resource where there is none: above any a study can have."""
_INFEASIBLE = 1e300
"""Violation of each constraint by a trial that ran out of memory: ranked behind all that trained."""
_EPOCH = datetime(2000, 1, 1)
_OLDER = int(optuna.__version__.split(".")[0]) < 5
"""Optuna 4 reads constraints only in samplers that were given a function for them."""


def optuna_samplers() -> list[str]:
    return sorted(n for n in optuna.samplers.__all__ if n.endswith("Sampler") and n not in _NOT_OFFERED)


def _class_of(name: str) -> type[optuna.samplers.BaseSampler]:
    found: type[optuna.samplers.BaseSampler] = getattr(optuna.samplers, name)
    return found


def check_sampler(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a sampler Optuna does not have, or arguments it does not take.

    Raises:
        ValueError: with the names that would do.
    """
    known = optuna_samplers()
    if name not in known:
        if name in _NOT_OFFERED:
            raise ValueError(
                f"sampler {name!r} is not offered: {_NOT_OFFERED[name]}; use random, ranked_gp, or one of Optuna's: "
                f"{', '.join(known)}"
            )
        raise ValueError(f"sampler {name!r} is unknown: {listed_and_meant(name, ['random', 'ranked_gp', *known])}")
    takes = list(inspect.signature(_class_of(name)).parameters)
    for argument in arguments:
        if argument == "constraints_func":
            raise ValueError(
                f"sampler {name}: constraints_func is a function, which a study file cannot hold; report its values "
                "with the metric (trial.report, trial.set_constraint) and list their names in the study's constraints"
            )
        if argument == "x0":
            raise ValueError(f"sampler {name}: x0 is not offered, and Optuna drops it; give it in start_with instead")
        if argument not in takes or argument == "seed":
            rest = [t for t in takes if t not in ("seed", "constraints_func", "x0")]
            cure = "the study's seed serves" if argument == "seed" else meant_or_known(argument, rest, "it takes:")
            raise ValueError(f"sampler {name} takes no argument {argument!r} here; {cure}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _class_of(name)(**arguments)
    except Exception as error:
        raise ValueError(f"sampler {name} refuses these arguments: {type(error).__name__}: {error}") from None


def check_objectives(name: str, arguments: Mapping[str, Any], objectives: int) -> None:
    """Refuse a sampler that knows one objective only, for a study with several.

    Raises:
        ValueError: with what Optuna says, and samplers that would do.
    """
    if objectives == 1:
        return
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = _class_of(name)(**arguments)
            study = optuna.create_study(directions=["minimize"] * objectives, sampler=sampler)
            study.ask().relative_params  # noqa: B018 - asks the sampler, which objects here
    except ValueError as error:
        raise ValueError(
            f"sampler {name} cannot do {objectives} objectives (Optuna: {error}); use TPESampler, NSGAIISampler, "
            "GPSampler or random, or give one metric"
        ) from None
    finally:
        optuna.logging.set_verbosity(verbosity)


def _shown_constraints(trial: FrozenTrial) -> list[float]:
    return list(trial.system_attrs["constraints"])


class OptunaSampler:
    """Asks an Optuna sampler, and shows it every result."""

    def __init__(self, name: str, arguments: Mapping[str, Any], context: SamplerContext) -> None:
        self._name = name
        self._arguments = dict(arguments)
        self._seed = context.seed
        self._constraints = context.constraints
        self._space = context.space
        self._class = _class_of(name)
        self._takes_seed = "seed" in inspect.signature(self._class).parameters
        self._storage = MirrorStorage()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._several = context.objectives > 1
        self._study = optuna.create_study(
            storage=self._storage, directions=["minimize"] * context.objectives, sampler=self._make(0)
        )
        knows_pruning = name in _KNOWS_PRUNING and not self._several
        self._level = (context.max_resource or _ENDLESS) if knows_pruning else 0
        self._enough = max(len(self._space.parameters) + 2, self._random_start())
        self._results_at: dict[int, int] = {}
        self._created: dict[int, TrialCreated] = {}
        self._trial_ids: dict[int, int] = {}
        self._violations: dict[int, dict[int, list[float]]] = {}
        """Values of the constraints by trial and resource."""
        self._last_failure: dict[int, Outcome] = {}
        self._values: dict[int, dict[int, tuple[float, ...] | None]] = {}
        self._queue = deque(context.start_with)
        """Parameters that people want in the next trials."""
        self._past = list(context.past)
        self._shifts: dict[int, tuple[float, ...]] = {}
        """By resource: how much larger losses are here than in the earlier studies."""
        self._tried_again: dict[int, int] = {}
        self._not_again = [-1 - i for i, trial in enumerate(self._past) if trial.proposed is not None]
        """Earlier trials whose configurations are to be tried again."""
        self._remember_past()

    def _remember_past(self) -> None:
        for index, trial in enumerate(self._past):
            number = -1 - index
            event = TrialCreated(number, 0, trial.params)
            self._add(event)
            self._created[number] = event
            self._values[number] = {resource: tuple(losses) for resource, losses in trial.losses.items()}
            for resource in trial.losses:
                self._results_at[resource] = self._results_at.get(resource, 0) + 1
        for resource in sorted(self._results_at):
            self._raise_level(resource)
        for number in self._values:
            self._show_result(number)

    def _learn_shift(self, resource: int) -> bool:
        # Compare what was trained in both at this resource; whether that gave a (new) shift.
        pairs = [
            tuple(new - old for new, old in zip(now, before, strict=True))
            for here, there in self._tried_again.items()
            if (now := self._values.get(here, {}).get(resource)) is not None
            and (before := self._values[there].get(resource)) is not None
        ]
        if not pairs:
            return False
        self._shifts[resource] = tuple(median(column) for column in zip(*pairs, strict=True))
        return True

    def _random_start(self) -> int:
        parameter = inspect.signature(self._class).parameters.get("n_startup_trials")
        given = self._arguments.get("n_startup_trials", parameter.default if parameter else 0)
        return given if isinstance(given, int) else 0

    def _make(self, number: int) -> optuna.samplers.BaseSampler:
        arguments = dict(self._arguments)
        name = self._name
        if self._takes_seed:
            fixed = name in _FIXED_SEQUENCE
            arguments["seed"] = derive_seed(self._seed, "sampler", 0 if fixed else number)
        if self._constraints and _OLDER and "constraints_func" in inspect.signature(self._class).parameters:
            arguments["constraints_func"] = _shown_constraints
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler: optuna.samplers.BaseSampler = self._class(**arguments)
        return sampler

    def propose(self, number: int, given: Params | None = None) -> Params:
        if number and self._name not in _FIXED_SEQUENCE:
            self._study.sampler = self._make(number)
        refused: list[int] = []
        for _ in range(_MOST_ASKS):
            trial = self._study.ask()
            self._trial_ids[number] = trial._trial_id
            values = suggest(self._space, trial, given)
            if not self._space.has_forbidden or not self._space.forbidden_by(values):
                break
            failed: FrozenTrial = self._storage.get_trial(trial._trial_id)
            failed.state = TrialState.FAIL
            self._storage.view[failed.number] = failed
            refused.append(failed.number)
        else:
            values = self._space.draw(Stream(self._seed, "params", number), given)
        for one in refused:  # a resumed study knows nothing of them
            self._storage.view[one] = None
        return values

    def apply(self, event: Event) -> None:
        if isinstance(event, TrialCreated):
            if event.trial not in self._trial_ids:
                self._remember(event)
            if event.queued and self._queue:
                self._queue.popleft()
            self._created[event.trial] = event
            past = next((n for n in self._not_again if repr(self._created[n].params) == repr(event.params)), None)
            if past is not None:
                self._tried_again[event.trial] = past
                self._not_again.remove(past)
            self._show(event.trial, TrialState.RUNNING)
        elif isinstance(event, ConfigurationEnqueued):
            self._queue.append(event.params)
        elif isinstance(event, JobCompleted):
            values = self._values.setdefault(event.trial, {})
            values[event.resource] = None if event.loss is None else event.losses or (event.loss,)
            if event.loss is not None and self._constraints:
                found = [event.metrics[name] for name in self._constraints]
                self._violations.setdefault(event.trial, {})[event.resource] = found
            if event.loss is not None:
                self._results_at[event.resource] = self._results_at.get(event.resource, 0) + 1
            again = [event.trial]
            if event.trial in self._tried_again and self._learn_shift(event.resource):
                again += [number for number in self._values if number < 0]
            if self._raise_level(event.resource):
                again = list(self._values)
            for number in again:
                self._show_result(number)
        elif isinstance(event, AttemptFailed):
            self._last_failure[event.trial] = event.outcome
        elif isinstance(event, TrialAbandoned) and event.trial not in self._values:
            # as infeasible if it ran out of memory (do not look there); else as failed
            no_memory = self._last_failure.get(event.trial) is Outcome.OUT_OF_MEMORY and not self._several
            self._show(event.trial, TrialState.PRUNED if no_memory else TrialState.FAIL, infeasible=no_memory)

    def _remember(self, event: TrialCreated) -> None:
        # Replay: show the sampler what it once answered.
        # Samplers that keep their state in what they were asked (a sequence index, a generation, a covariance) are
        # asked again and their answer is dropped; for the others that would only cost time. With what people gave, as
        # then: it decides which answers were forbidden, and so how often the sampler was asked.
        if self._name in _STATEFUL:
            queued = event.queued and bool(self._queue)
            self.propose(event.trial, given_values(self._space, self._queue[0], "configuration") if queued else None)
            return
        self._add(event)

    def _add(self, event: TrialCreated) -> None:
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=seen(self._space, event.params),
                distributions=distributions(self._space, event.params),
            )
        )
        newest = self._storage.get_all_trials(self._study._study_id, deepcopy=False)[-1]
        self._trial_ids[event.trial] = newest._trial_id

    def _raise_level(self, resource: int) -> bool:
        if resource <= self._level or self._results_at.get(resource, 0) < self._enough:
            return False
        self._level = resource
        return True

    def _show_result(self, number: int) -> None:
        values = self._seen(number)
        losses = values.get(self._level)
        if losses is not None:
            self._show(number, TrialState.COMPLETE, losses)
        elif self._several:  # with values still: as a parent of a generation it may have been COMPLETE before
            self._show(number, TrialState.FAIL, next((v for _, v in sorted(values.items(), reverse=True) if v), None))
        else:
            last = values[max(values)]
            self._show(number, TrialState.PRUNED, last or (math.inf,))

    def _seen(self, number: int) -> dict[int, tuple[float, ...] | None]:
        # Results of a trial by resource; those of earlier studies shifted to the level of this one.
        values = self._values.get(number, {})
        if number >= 0 or not self._shifts:
            return values
        return {
            resource: None if losses is None else tuple(map(sum, zip(losses, self._shift_at(resource), strict=True)))
            for resource, losses in values.items()
        }

    def _shift_at(self, resource: int) -> tuple[float, ...]:
        return self._shifts[min(self._shifts, key=lambda known: abs(math.log(known / resource)))]

    def _constraints_of(self, number: int, state: TrialState) -> list[float]:
        # Return the constraints at the resource whose losses are shown; earlier studies lent feasible results only.
        values = self._violations.get(number, {})
        if not values:
            return [0.0] * len(self._constraints)
        return values[self._level if state is TrialState.COMPLETE and self._level in values else max(values)]

    def _show(
        self, number: int, state: TrialState, losses: tuple[float, ...] | None = None, *, infeasible: bool = False
    ) -> None:
        params = self._created[number].params
        values = self._seen(number)
        base = self._storage.get_trial(self._trial_ids[number])
        attrs = dict(base.system_attrs)
        if self._constraints and losses is not None:
            attrs["constraints"] = self._constraints_of(number, state)
        elif self._constraints and infeasible:
            attrs["constraints"] = [_INFEASIBLE] * len(self._constraints)
        self._storage.view[base.number] = FrozenTrial(
            number=base.number,
            trial_id=base._trial_id,
            state=state,
            value=None,
            values=losses,
            datetime_start=_EPOCH,
            datetime_complete=_EPOCH if state.is_finished() else None,
            params=seen(self._space, params),
            distributions=distributions(self._space, params),
            user_attrs={},
            system_attrs=attrs,
            intermediate_values={} if self._several else {r: v[0] if v else math.inf for r, v in values.items()},
        )
