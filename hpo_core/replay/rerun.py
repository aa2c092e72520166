"""Make a study that trains again along another one's recorded jobs (ASHA 5.4; PBT, Li et al. 2019, 3.9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.events import (
    ControllerChanged,
    Entry,
    JobCompleted,
    JobGranted,
    Reproduced,
    StudyCreated,
    TrialCreated,
)
from hpo_core.spec import StudySpec
from hpo_core.spec.validation_errors import check_plain


def rerun_spec(
    entries: Sequence[Entry],
    name: str,
    *,
    trials: Sequence[int] = (),
    changes: Mapping[str, Any] | None = None,
) -> StudySpec:
    """The spec of a rerun: same space, seed and training, grants and parameters as recorded.

    Grants that only repeated a failed attempt are left out: the rerun has its own failures and retries.

    Args:
        trials: only these and what they went on from, numbered anew in the order they were created (so a
            parent comes before its children); default: all.
        changes: parameters to set in every trial, of the space or not, for example another data set.

    Raises:
        SpecError: the source granted nothing, has no such trial, ``name`` is no valid name, or a change is of a
            setting and of no parameter.
    """
    source: dict[str, Any] = {}
    created: list[TrialCreated] = []
    born: dict[int, Reproduced] = {}
    granted: list[JobGranted] = []
    ranks: dict[tuple[int, int], int] = {}
    visits: dict[int, dict[int, list[int]]] = {}
    for entry in entries:
        for event in entry.events:
            if isinstance(event, StudyCreated):
                source = event.spec
            elif isinstance(event, ControllerChanged) and event.objective:
                source = source | {"objective": event.objective}
            elif isinstance(event, TrialCreated):
                created.append(event)
            elif isinstance(event, Reproduced):
                born[event.child] = event
            elif isinstance(event, JobCompleted) and isinstance(event.visits, tuple):
                visits.setdefault(event.trial, {}).update(_orders(event, len(source["data"]["partitions"])))
            elif isinstance(event, JobGranted):
                ranks[event.trial, event.target] = event.demand.slots  # of a job that was tried again: the last ones
                if not event.retry:
                    granted.append(event)
    if not granted:
        raise SpecError(f"Study {source.get('study')!r} granted no job yet; there is nothing to train again.")
    wanted = _with_ancestors(created, trials) if trials else list(range(len(created)))
    number = {old: new for new, old in enumerate(wanted)}
    check_plain(dict(changes or {}), "--set")
    drawn = (known for event in created for known in event.params)
    _refuse_settings(changes or {}, {*source.get("space", ()), *source.get("constants", ()), *drawn})
    of_source = source["search"].get("study_record", {})  # a rerun has the seeds of its own source
    seeded = of_source.get("numbers") or list(range(len(created)))
    recorded = StudySpec.from_journal(source)
    search = {
        "method": "recorded",
        "study_record": {
            "source": source["study"],
            "grants": [
                _grant(event, created, born, number) | {"slots": ranks[event.trial, event.target]}
                for event in granted
                if event.trial in number
            ],
            "params": [created[old].params | dict(changes or {}) for old in wanted],
            "numbers": [seeded[old] for old in wanted],
            **({"visits": [visits.get(old, {}) for old in wanted]} if visits else {}),
            "any_metric": recorded.any_metric,
            "unit_is_whole": recorded.search.unit_is_whole(),
        },
    }
    rest: dict[str, Any] = {
        "study": name,
        "search": search,
        "sampler": {"name": "random"},
        "stop": {},
        "checkpoints": {"folder": source.get("checkpoints", {}).get("folder")},
        "warm_start": None,
        "start_with": [],
    }
    return StudySpec.from_journal(source | rest, "rerun")


def _refuse_settings(changes: Iterable[str], parameters: Iterable[str]) -> None:
    # A setting would become a parameter of that name, which no training function reads: no change at all.
    groups = {known.partition(".")[0] for known in parameters if "." in known}
    for name in changes:
        group, dot, _ = name.partition(".")
        if dot and group in StudySpec.model_fields and group not in groups:
            raise SpecError(
                f"--set {name}: a rerun has the settings of the study that it repeats, and {name} is one of these and "
                "no parameter. Drop it, or start a new study with it: hpo tune FILE --set ..."
            )


def _with_ancestors(created: Sequence[TrialCreated], trials: Sequence[int]) -> list[int]:
    found: set[int] = set()
    for trial in trials:
        if not 0 <= trial < len(created):
            raise SpecError(f"--trial {trial}: the study has trials 0 to {len(created) - 1}.")
        ancestor: int | None = trial
        while ancestor is not None and ancestor not in found:
            found.add(ancestor)
            ancestor = created[ancestor].parent
    return sorted(found)


def _orders(event: JobCompleted, trained_on: int) -> dict[int, list[int]]:
    # Return the order of partitions by epoch, from 1; an epoch that diverged midway is left out.
    orders: dict[int, list[int]] = {}
    for visit in event.visits or ():
        if visit.partition < trained_on:
            orders.setdefault(visit.epoch + 1, []).append(visit.partition)
    return {epoch: order for epoch, order in orders.items() if len(order) == trained_on}


def _grant(
    event: JobGranted, created: Sequence[TrialCreated], born: Mapping[int, Reproduced], number: Mapping[int, int]
) -> dict[str, Any]:
    parent = created[event.trial].parent
    plain: dict[str, Any] = {
        "trial": number[event.trial],
        "bracket": event.bracket,
        "rung": event.rung,
        "target": event.target,
    }
    how = born.get(event.trial)
    if how is not None:
        plain["parent"] = None if parent is None else number[parent]
        plain["initiator"] = number.get(how.initiator)
        plain["opponent"] = None if how.opponent is None else number.get(how.opponent)
        plain["member"] = how.member
    return plain
