"""RatioTuner: runs copies of one job at rising oversubscription ratios, as a packed study would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hpo_core.execution.checkpoint_cleanup import CheckpointCleanup
from hpo_core.execution.executor import Executor
from hpo_core.execution.loop import Loop
from hpo_core.execution.packed_placing import placer_of
from hpo_core.execution.ratio_tuning.choice import Together, best_of, is_falling
from hpo_core.execution.ratio_tuning.window import MeasuredWindow
from hpo_core.journal.measurements import measurements_of
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.devices.inventory import EMPTY, Capacity
from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.events import Event
from hpo_core.model.stage import Rung
from hpo_core.model.trial import Job, Outcome, Params
from hpo_core.placement.placer import Meter
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.spec import PackingSpec, StudySpec
from hpo_core.spec.packing import DEFAULT, MOST_OVERSUBSCRIBED
from hpo_core.study import Study

MOST_RATIOS = 20
CONFIGURATIONS = 100_000
"""More than can end in a window."""
PATIENCE = 600.0
"""Seconds beyond ten windows that the first units may take."""
_NO_ROOM = "no room for more jobs"
UNITS = 10_000
"""Of a training whose search has no upper limit: more than end in a window."""


def checked_ratios(given: Sequence[float]) -> list[float]:
    """Rising ratios; 1, which the others are compared with, comes first.

    Raises:
        SpecError: one is no ratio, or there are too many.

    >>> checked_ratios([3, 1.5, 2])
    [1.0, 1.5, 2.0, 3.0]
    """
    for ratio in given:
        if not 1 <= ratio <= MOST_OVERSUBSCRIBED:
            raise SpecError(
                f"--ratios: {ratio:g} must be from 1 (jobs claim what there is) to {MOST_OVERSUBSCRIBED:g}; "
                "write for example 1,1.5,2,3."
            )
    found = sorted({1.0, *map(float, given)})
    if len(found) > MOST_RATIOS:
        raise SpecError(f"--ratios: {len(found)} ratios, and at most {MOST_RATIOS} are measured; leave some out.")
    if len(found) == 1:
        raise SpecError("--ratios: 1 alone is nothing to choose from; write for example 1,1.5,2,3.")
    return found


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on one architecture."""

    alone: Together
    """One job on each device."""
    rows: tuple[Together, ...]
    """By rising ratio."""
    end: str
    """Why larger ratios were not measured; empty: all were."""

    @property
    def best(self) -> Together:
        return best_of(self.rows)

    @property
    def speedup(self) -> float:
        """Throughput of the best ratio over that of ratio 1."""
        return self.best.units_per_second / self.rows[0].units_per_second


class MeteredExecutor(Executor, Meter, Protocol):
    """Runs jobs and measures them while they run."""


class RatioTuner:
    """Measures the throughput of jobs that share devices, one ratio after the other.

    Each is a study in memory, with the loop, the placement and the executor of a packed study; all its trials have the
    same parameters. One job on each device is measured first, for its need.

    Args:
        spec: the study's; its search is left out, but for the units of a full training.
        params: of all jobs.
        ratios: as :func:`checked_ratios` gives them.
        seconds: that each ratio is measured, once all its jobs train.
        units: of one training; default: as many as a full one of the study has.
        executors: starts the executor of a study in a folder, and ends it.
        folder: for checkpoints and logs, removed by whoever made it.
        past: measurements of earlier studies.
        say: shows a person what is done.
    """

    def __init__(
        self,
        spec: StudySpec,
        params: Params,
        *,
        ratios: Sequence[float],
        seconds: float,
        units: int | None = None,
        executors: Callable[[StudySpec, Path], AbstractContextManager[MeteredExecutor]],
        folder: Path,
        past: Sequence[Measurement] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._packing = spec.packing or PackingSpec()
        self._spec = _repeated(spec, units)
        self._params = params
        self._ratios = list(ratios)
        self._seconds = seconds
        self._executors = executors
        self._folder = folder
        self._past = [one for one in past if not one.oversubscribe]
        self._say = say
        self._inventory = EMPTY
        self.measured: list[Measurement] = []
        """Of one job on a device, for the history."""

    def run(self) -> dict[str, Found]:
        """By architecture.

        Raises:
            HpoError: a job fails, ends no unit in time, needs an unknown amount of compute, or only starts and ends.
        """
        alone = self._measure(None)
        self._check_needs()
        rows: dict[str, list[Together]] = {name: [] for name in alone}
        ends = dict.fromkeys(alone, "")
        before: dict[str, int] = {}
        for ratio in self._ratios:
            counts, lacking = self._room(ratio)
            same = {name for name in alone if counts.get(name, 0) == before.get(name, 0)}
            for name in alone:
                if name in same:
                    ends[name] = ends[name] or f"{_NO_ROOM} at {ratio:g}: {lacking.get(name, '')}"
                elif ends[name].startswith(_NO_ROOM):
                    ends[name] = ""
            if all(name in same or not _may_rise(ends[name]) for name in alone):
                self._say(f"ratio {ratio:g}: {_NO_ROOM} than before")
                continue
            before = counts
            found = self._measure(ratio)
            if not found:
                ends = {name: end or f"out of memory at {ratio:g}" for name, end in ends.items()}
                break
            for name, row in found.items():
                if name in rows and not ends[name]:
                    rows[name].append(row)
                    if is_falling(rows[name]):
                        ends[name] = f"slower at {ratio:g}"
            if not any(map(_may_rise, ends.values())):
                break
        return {name: Found(alone=alone[name], rows=tuple(rows[name]), end=ends[name]) for name in alone if rows[name]}

    def _measure(self, ratio: float | None) -> dict[str, Together]:
        """Run one study; empty where a ratio above 1 ran out of memory."""
        study = self._study(ratio)
        folder = self._folder / ("alone" if ratio is None else f"ratio-{ratio:g}")
        for part in ("checkpoints", "logs"):
            (folder / part).mkdir(parents=True)
        with self._executors(study.spec, folder) as executor:
            placer = _shared(study, executor)
            patience = PATIENCE + 10 * self._seconds
            window = MeasuredWindow(study, placer, executor, seconds=self._seconds, patience=patience)
            Loop(study, executor, placer=placer, checkpoints=CheckpointCleanup(study, folder), observers=[window]).run()
        self._inventory = placer.inventory
        if ratio is None:
            self.measured = placer.estimates.new_measurements()
        if (failure := window.failure) is not None:
            if failure.outcome is Outcome.OUT_OF_MEMORY and ratio is not None and ratio > 1:
                self._say(f"ratio {ratio:g}: out of memory: {failure.message}")
                return {}
            raise HpoError(f"A job ended with {failure.outcome}: {failure.message} `hpo try` shows where.")
        if not window.is_complete:
            raise HpoError(
                f"No unit of training ended on each device within {patience:.0f} s, so there is no throughput to "
                "measure. Choose parameters that train faster (NAME=VALUE), or units that are shorter."
            )
        if window.start_is_most():
            raise HpoError(
                "The jobs take longer to start than to train, so what a ratio gains cannot be measured. Let them train "
                "more units (search.max_resource), or choose parameters that train longer."
            )
        found = window.results(ratio)
        for name, row in found.items():
            title = "one job on each device" if ratio is None else f"ratio {ratio:g}"
            self._say(f"{title}: {row.jobs} at once on {name}, {row.units_per_second:.4g} units/s")
        return found

    def _study(self, ratio: float | None) -> Study:
        changes: dict[str, Any] = {"oversubscribe": {DEFAULT: ratio or 1.0}, "learn_pairs": False}
        if ratio is None:
            changes |= {"most": 1, "look_ahead": 1}
        packing = self._packing.model_copy(update=changes)
        spec = self._spec.model_copy(update={"packing": packing})
        study = Study.create(spec, MemoryJournal(), sampler=_SameParams(self._params, spec))
        measurements_of(study.journal).add([*self._past, *self.measured])
        return study

    def _placed(self, ratio: float) -> tuple[SharedDevices, Job]:
        """A placer that is full of such jobs, and one more of them."""
        placer = _shared(self._study(ratio))
        placer.update(self._inventory)
        most = self._packing.most * len(self._inventory.devices)
        jobs = [Job(number, 0, Rung(0, 0), 1, self._params) for number in range(most + 1)]
        placer.place(jobs)
        return placer, jobs[-1]

    def _room(self, ratio: float) -> tuple[dict[str, int], dict[str, str]]:
        """By architecture: how many jobs run at once, and what one more lacks."""
        placer, another = self._placed(ratio)
        counts: dict[str, int] = {}
        for share in placer.shares().values():
            counts[share.architecture] = counts.get(share.architecture, 0) + 1
        most = self._packing.most
        full = {name for name, count in counts.items() if count == most * self._devices(name)}
        lacking = placer.lacking(another)
        return counts, lacking | dict.fromkeys(full, f"packing.most = {most}")

    def _devices(self, architecture: str) -> int:
        capacities = [device.capacity for device in self._inventory.devices]
        return sum(isinstance(one, Capacity) and one.architecture == architecture for one in capacities)

    def _check_needs(self) -> None:
        placer, job = self._placed(1.0)
        unknown = [name for name, parts in placer.guessed(job).items() if "compute" in parts]
        if unknown:
            raise HpoError(
                f"What compute a job needs of {', '.join(unknown)} could not be measured, so a ratio means nothing "
                "there. State it: --set packing.demand.compute=30 (percent of the device)."
            )


def _may_rise(end: str) -> bool:
    """Whether a larger ratio may still be better: more jobs may have room again, slower ones get no faster."""
    return not end or end.startswith(_NO_ROOM)


def _repeated(spec: StudySpec, units: int | None) -> StudySpec:
    """A study that trains configurations to the end until it is halted."""
    plain = spec.plain()
    most = units or spec.search.outline().max_resource or UNITS
    changes: dict[str, Any] = {
        "search": {"method": "random", "configs": CONFIGURATIONS, "max_resource": most},
        "sampler": {"name": "random"},
        "stop": {},
        "start_with": [],
        "warm_start": None,
        "repeats": 1,
        "build": None,
        "packing": plain["packing"] or {},
        "checkpoints": {},
        "tracking": {"mlflow": "off"},
    }
    return StudySpec.from_journal(plain | changes, "tune-packing")


def _shared(study: Study, meter: Meter | None = None) -> SharedDevices:
    placer = placer_of(study, meter)
    assert isinstance(placer, SharedDevices), "the study packs"
    return placer


class _SameParams:
    """A sampler whose trials are all alike."""

    def __init__(self, params: Params, spec: StudySpec) -> None:
        self._params = {name: value for name, value in params.items() if name in spec.space}

    def propose(self, number: int, given: Params | None = None) -> Params | None:
        return dict(self._params)

    def apply(self, event: Event) -> None:
        """Nothing is learned."""
