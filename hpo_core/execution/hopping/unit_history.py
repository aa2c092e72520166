"""Units that earlier controllers of a study measured, as its journal holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpo_core.execution.hopping.hopped_job import JobProgress
from hpo_core.hopper.unit_times import UnitTimes
from hpo_core.model.events import AttemptFailed, Entry, JobCompleted
from hpo_core.model.hops import TogetherField, Visit, units_of


def observe_recorded(
    times: UnitTimes,
    entries: Iterable[Entry],
    progress: Iterable[tuple[int, JobProgress]] = (),
) -> None:
    """Observe all recorded units in the order of their ends, as the controllers before this one did.

    Each counts once, also where the attempt failed and the next one went on after it. Units since the end of an epoch
    that was not the last one of its job are not known: they were lost with their controller, and are repeated.

    Args:
        entries: of the journal.
        progress: by trial, what a controller that was killed left of the job under way.
    """
    units: set[tuple[int, tuple[Visit, ...]]] = set()

    def take(trial: int, visits: Sequence[Visit], together: TogetherField) -> None:
        units.update((trial, unit) for unit in units_of(visits, together))

    for entry in entries:
        for event in entry.events:
            if isinstance(event, JobCompleted | AttemptFailed):
                take(event.trial, event.visits or (), event.together)
    for trial, left in progress:
        take(trial, left.visits, tuple(left.together))
    for trial, unit in sorted(units, key=lambda each: (each[1][0].ended, each[0])):
        first, *others = unit
        seconds = first.ended - first.started
        if others:
            times.observe_gang(trial, [(visit.partition, visit.worker) for visit in unit], seconds)
        else:
            times.observe(trial, first.worker, first.partition, seconds)
