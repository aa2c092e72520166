"""The placement that a study describes, with what is known of its jobs' needs."""

from __future__ import annotations

import time

from hpo_core.journal.measurements import QuietMeasurements, measurements_of
from hpo_core.model.devices.measurement import found_ratios
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.placement import Placer, Slots
from hpo_core.placement.demands import Estimates, StatedDemand, deciding_parameters, objective_digest
from hpo_core.placement.packing.registry import POLICIES
from hpo_core.placement.placer import Meter
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.spec import StudySpec, is_pure
from hpo_core.study import Study

WRITE_SECONDS = 10.0
"""How often new measurements are written: each time costs the disk a transaction."""


def placer_of(study: Study, meter: Meter | None = None) -> Placer:
    """The placer of a study: one job on each slot; with ``packing``, several on a device by what they need.

    Args:
        meter: measures running jobs where they share devices.
    """
    spec = study.spec
    packing = spec.packing
    if packing is None:
        return Slots()
    objective, code = spec.objective or "", ""
    if spec.objective is not None:
        code = objective_digest(spec.objective, spec.pythonpath)
    past = QuietMeasurements(measurements_of(study.journal)).read(objective, code)
    packing = packing.with_found({name: one.oversubscribe for name, one in found_ratios(past).items()})
    estimates = Estimates(
        objective=objective,
        code=code,
        study=spec.study,
        by=deciding_parameters(spec.search_space(), spec.constants, packing.by),
        stated=StatedDemand.read(packing.demand.stated()),
        past=past,
    )
    placer = SharedDevices(
        packing,
        POLICIES[packing.policy](),
        estimates,
        constants=spec.constants,
        free_choice=spec.search.outline().independent and is_pure(spec),
        alone=_alone(study),
        meter=meter,
    )
    learn_from_journal(study, estimates)
    return placer


def found_ratio_words(spec: StudySpec, placer: SharedDevices) -> str:
    """Which ratios the study uses that it does not state; empty: none."""
    stated = spec.packing.oversubscribe if spec.packing is not None else {}
    found = {name: ratio for name, ratio in placer.ratios.items() if name not in stated}
    each = ", ".join(f"{ratio:g} times on {name}" for name, ratio in sorted(found.items()))
    return f"Jobs may claim the compute {each}, as `hpo tune-packing` found (packing.oversubscribe)." if each else ""


def _alone(study: Study) -> list[int]:
    """Trials that ran out of memory at the target that they are to reach, whatever came after that."""
    trials = study.state.trials
    return [trial.number for trial in trials if any(one.outcome is Outcome.OUT_OF_MEMORY for one in trial.failures)]


def learn_from_journal(study: Study, estimates: Estimates, *, gpu: str = "") -> None:
    """Learn what the study's own journal holds; the history has most of it, but not the last seconds before a crash.

    Args:
        gpu: architecture of attempts that had a whole GPU, for they do not know it; empty: they are left out.
    """
    spec = study.spec
    parameters = [{**spec.constants, **trial.params} for trial in study.state.trials]
    for trial in study.state.trials:
        params = parameters[trial.number]
        for result in trial.results:
            if isinstance(result.usage, Usage):
                usage = result.usage
                unnamed = gpu if usage.device_memory is not None else ""
                estimates.learn(
                    params,
                    usage,
                    at=result.ended,
                    architecture=usage.architecture or unnamed or None,
                    beside=[(parameters[number], permille) for number, permille in usage.beside],
                )
        for failure in trial.failures:
            used = failure.usage
            if failure.outcome is Outcome.OUT_OF_MEMORY and isinstance(used, Usage) and used.share is not None:
                peak = used.memory if used.device_memory is None else used.device_memory
                estimates.raise_after_out_of_memory(
                    params, used.architecture, had=used.share[1], at=failure.ended, measured=peak
                )


class PlacementWriter:
    """Writes into the journal which jobs began on shared devices; many in one entry.

    An observer of the loop. A job that ended before a tick is left out: its report says where it ran.
    """

    def __init__(self, study: Study, placer: SharedDevices) -> None:
        self._study = study
        self._placer = placer

    def on_report(self, report: Report, granted: list[Job]) -> None:
        """Nothing: placements are written together."""

    def on_tick(self) -> None:
        """Write what is new."""
        self._study.note_placements(self._placer.new_placements())

    def close(self) -> None:
        """Nothing to release."""


class MeasurementWriter:
    """Writes what a study measured into the history, for this study's next controller and for other studies."""

    def __init__(self, study: Study, estimates: Estimates) -> None:
        self._estimates = estimates
        self._history = QuietMeasurements(measurements_of(study.journal))
        self._next = time.monotonic() + WRITE_SECONDS

    def on_report(self, report: Report, granted: list[Job]) -> None:
        """Nothing: measurements are written together."""

    def on_tick(self) -> None:
        """Write what is new, every few seconds."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + WRITE_SECONDS
            self._write()

    def close(self) -> None:
        """Write the rest."""
        self._write()

    def _write(self) -> None:
        self._history.add(self._estimates.new_measurements())  # and what an earlier write could not
