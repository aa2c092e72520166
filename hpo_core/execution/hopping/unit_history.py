"""Expected seconds of a trial's units, by its deciding parameters, from epochs that were measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import msgspec

from hpo_core.execution.hopping.hopped_job import JobProgress
from hpo_core.execution.placing import objective_digest
from hpo_core.hopper.unit_times import UnitTimes
from hpo_core.journal.measurements import QuietMeasurements
from hpo_core.model.devices.measurement import Measurement, Usage
from hpo_core.model.events import AttemptFailed, Entry, JobCompleted, TrialCreated
from hpo_core.model.hops import TogetherField, Visit, units_of
from hpo_core.model.partition_file import PartitionFile
from hpo_core.model.trial import Params
from hpo_core.placement.estimates import Estimates
from hpo_core.spec import StudySpec
from hpo_core.study import Study


class EpochTimes:
    """Expected seconds of a trial's units, before the first of them was measured.

    Those of trials with the same deciding parameters (all but plain floats), else a prediction from eight and more
    others, as for jobs that share devices. What other data took is not taken for it.

    Args:
        spec: of the study, its partitions listed.
        code: digest of the training function's source.
        past: measurements of the same function, by earlier studies.
    """

    def __init__(self, spec: StudySpec, *, code: str = "", past: Iterable[Measurement] = ()) -> None:
        self._constants = spec.constants
        self._trained_on = spec.trained_partitions
        self._data = data_name(spec.partitions)
        self.estimates = Estimates(
            objective=spec.objective or "",
            code=code,
            study=spec.study,
            by=spec.deciding,
            past=(one for one in past if one.architecture == self._data),
        )

    def expected(self, params: Params) -> float | None:
        """Seconds of a unit on a partition of mean size; None where nothing is known."""
        seconds = self.estimates.unit_seconds({**self._constants, **params}, self._data)
        return seconds / self._trained_on if seconds else None

    def learn(self, params: Params, visits: Sequence[Visit], together: TogetherField = msgspec.UNSET) -> None:
        """Learn from the seconds of a job's units. A job that is learned again adds nothing.

        Epochs with units of several ranks are left out: they tell nothing about one worker.
        """
        gangs = {unit[0].epoch for unit in units_of(visits, together) if len(unit) > 1}
        visits = [visit for visit in visits if visit.epoch not in gangs]
        epochs = len({visit.epoch for visit in visits})
        trained = [visit for visit in visits if visit.partition < self._trained_on]
        if trained:
            usage = Usage(unit_seconds=sum(max(0.0, visit.ended - visit.started) for visit in trained) / epochs)
            at = visits[-1].ended
            self.estimates.learn({**self._constants, **params}, usage, at=at, architecture=self._data)


def data_name(files: Sequence[PartitionFile]) -> str:
    """Name of the data in the history, in place of a device's: seconds of an epoch depend on the data.

    >>> data_name([PartitionFile(name="a", count=3)])
    'partitions d5d753059589'
    """
    told = "\n".join(f"{file.name} {file.count} {file.bytes} {file.digest}" for file in files)
    return f"partitions {hashlib.sha256(told.encode(errors='backslashreplace')).hexdigest()[:12]}"


def epoch_times_of(study: Study) -> EpochTimes:
    """Expected unit times, from earlier studies and the journal of this one."""
    spec = study.spec
    objective, code = spec.objective or "", objective_digest(spec.objective or "", spec.pythonpath)
    past = QuietMeasurements(study.journal.measurements).read(objective, code)
    times = EpochTimes(spec, code=code, past=past)
    for trial in study.state.trials:
        for result in trial.results:
            times.learn(trial.params, result.visits or (), result.together)
    return times


def observe_recorded(
    times: UnitTimes,
    entries: Iterable[Entry],
    progress: Iterable[tuple[int, JobProgress]] = (),
    *,
    expected: Callable[[Params], float | None],
) -> None:
    """Observe all recorded units in the order of their ends, as the controllers before this one did.

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
        take(trial, left.visits, tuple(left.together))
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
