"""Results of earlier studies, for a new one to begin from (``warm_start`` of its spec).

Everything is read once, before the new study is created, and stands in its own entry 0 from then on: a study never
depends on another one's journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.space import ListedParameter, SearchSpace
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Params
from hpo_core.replay.audit import damage_named
from hpo_core.samplers.sampler import EarlierResult
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState, TrialRecord

_Found = tuple[Params, TrialRecord]
TRIED_FIRST = 3
MOST_SHOWN = 300
"""Results of earlier studies that a sampler is shown at most."""
DECAY = 0.5
"""Share of the newest study's results that a sampler is shown; its square of the study before, and so on."""


def with_past(spec: StudySpec, journal: Journal) -> StudySpec:
    """The spec with its warm start filled in; unchanged where it has none, or has it filled in.

    Proposals: of each study in turn the best configuration, then of each the next one, until there are three
    different ones. A study's best are those trained furthest, and of these the ones with the smallest loss. A
    parameter with one choice gets it (so ``data: {type: categorical, choices: [new.npz]}`` moves them to new data);
    configurations that do not lie in the space are left out.

    Results: of study ``i`` (0 is the newest) each trial is kept with probability ``DECAY ** (i + 1)``, those of the
    proposals always, with draws from the new study's seed.

    Raises:
        SpecError: an earlier study has other metrics.
        StudyNotFoundError: the journal holds no such study.
    """
    warm = spec.warm_start
    if warm is None or warm.past is not None:
        return spec
    space = spec.search_space()
    found = []
    for name in warm.studies:
        with damage_named(journal, name):
            found.append(_trials(spec, name, journal, space))
    proposals: list[Params] = []
    numbers: dict[tuple[int, int], int] = {}
    for place in range(max(map(len, found), default=0)):
        for age, trials in enumerate(found):
            if len(proposals) < TRIED_FIRST and place < len(trials):
                params, trial = trials[place]
                if params not in proposals:
                    numbers[age, trial.number] = len(proposals)
                    proposals.append(params)
    filled = warm.model_copy(update={"past": _past(spec, found, numbers)})
    return spec.model_copy(update={"warm_start": filled})


def _trials(spec: StudySpec, name: str, journal: Journal, space: SearchSpace) -> list[_Found]:
    state = StudyState()
    for entry in journal.entries(name):
        for event in entry.events:
            state.apply(event)
    assert state.spec is not None
    if state.spec.objectives != spec.objectives:
        raise SpecError(
            f"warm_start.studies: study {name!r} optimizes {_metrics(state.spec)}, the new one {_metrics(spec)}; name "
            "studies of the same metrics."
        )
    if set(state.spec.constraints) != set(spec.constraints):
        raise SpecError(
            f"warm_start.studies: study {name!r} has the constraints {state.spec.constraints or 'none'}, the new one "
            f"{spec.constraints or 'none'}; name studies of the same constraints."
        )
    ranked = sorted(
        (trial for trial in state.trials if trial.loss is not None and not trial.infeasible),
        key=lambda trial: (-trial.resource, trial.loss, trial.number),
    )
    fitted = [(_fitted(trial.params, space), trial) for trial in ranked]
    return [(params, trial) for params, trial in fitted if params is not None]


def _fitted(params: Params, space: SearchSpace) -> Params | None:
    fixed: dict[str, Any] = {
        name: parameter.listed()[0]
        for name, parameter in space.parameters.items()
        if isinstance(parameter, ListedParameter) and len(parameter.listed()) == 1
    }
    joined = params | fixed
    kept = {name: joined[name] for name in space.order if name in joined and space.is_active(name, joined)}
    try:  # 1 for 1.0 and the like: as the space has them
        taken = given_values(space, kept, "")
    except ValueError:
        return None
    return None if space.complaints(taken) else taken


def _past(
    spec: StudySpec, found: Sequence[Sequence[_Found]], numbers: dict[tuple[int, int], int]
) -> list[EarlierResult]:
    kept: list[EarlierResult] = []
    for age, trials in enumerate(found):
        draws = Stream(spec.seed, "warm-start", age)
        for params, trial in trials:
            proposed = numbers.get((age, trial.number))
            chance = draws.uniform() < DECAY ** (age + 1)
            if proposed is not None or (chance and trial.parent is None):
                # of a trial that went on from another one the parameters alone: its results are of several
                feasible = [result for result in trial.results if not result.violation and trial.parent is None]
                losses = {r.resource: list(r.losses or (r.loss,)) for r in feasible if r.loss is not None}
                kept.append(EarlierResult(params=params, losses=losses, proposed=proposed))
    kept.sort(key=lambda trial: trial.proposed is None)  # the proposed ones tell how the data differ
    return kept[:MOST_SHOWN]


def _metrics(spec: StudySpec) -> str:
    return ", ".join(f"{metric.name} ({metric.mode})" for metric in spec.objectives)
