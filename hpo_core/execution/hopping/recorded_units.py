"""How long units took that the journal holds, for a controller that goes on after another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hpo_core.execution.hopping.progress_files import Progress
from hpo_core.hopper.unit_times import UnitTimes
from hpo_core.model.events import AttemptFailed, Entry, JobCompleted, TrialCreated
from hpo_core.model.hops import TogetherField, Visit, units_of
from hpo_core.model.trial import Params


def observe_recorded(
    times: UnitTimes,
    entries: Iterable[Entry],
    progress: Iterable[tuple[int, Progress]] = (),
    *,
    expected: Callable[[Params], float | None],
) -> None:
    """Take up all units that ended, in the order of their ends, as the controllers before this one did.

    Each counts once, also where the attempt failed and the next one went on after it. Units since the end of an epoch
    that was not the last one of its job are not known: they were lost with their controller, and are repeated.

    Args:
        entries: of the journal.
        progress: by trial, what a controller that was killed left of the job under way.
        expected: seconds of a unit with these parameters, as they are expected before the first one; None: not known.
    """
    params: dict[int, Params] = {}
    units: set[tuple[int, tuple[Visit, ...]]] = set()

    def take(trial: int, visits: Sequence[Visit], together: TogetherField) -> None:
        units.update((trial, unit) for unit in units_of(visits, together))

    for entry in entries:
        for event in entry.events:
            if isinstance(event, TrialCreated):
                params[event.trial] = event.params
            elif isinstance(event, JobCompleted | AttemptFailed):
                take(event.trial, event.visits or (), event.together)
    for trial, left in progress:
        take(trial, left.visits, left.together)
    seen: set[int] = set()
    for trial, unit in sorted(units, key=lambda each: (each[1][0].ended, each[0])):
        if trial not in seen:
            seen.add(trial)
            seconds = expected(params[trial]) if trial in params else None
            if seconds is not None:
                times.expect(trial, seconds)
        first, *others = unit
        seconds = first.ended - first.started
        if others:
            times.observe_gang(trial, [(visit.partition, visit.worker) for visit in unit], seconds)
        else:
            times.observe(trial, first.worker, first.partition, seconds)
