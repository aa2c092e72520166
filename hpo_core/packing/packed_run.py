"""The placer of jobs that share devices, and the records of where jobs run and what they need."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import time
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from hpo_core.execution.executor import RunParts
from hpo_core.journal.protocol import QuietMeasurements
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.trial import Outcome
from hpo_core.packing.estimates import Estimates
from hpo_core.packing.policies import POLICIES
from hpo_core.packing.shared_devices import SharedDevices
from hpo_core.placement.placer import UsageMeter
from hpo_core.spec.assembly import is_pure
from hpo_core.spec.module_source import code_files
from hpo_core.spec.packing import StatedDemand
from hpo_core.spec.sent_functions import digest_of, placed
from hpo_core.study import Study
from hpo_core.training.objective import load_objective

WRITE_SECONDS = 10.0
"""Seconds between two writes of new measurements: each costs the disk a transaction."""


def shared_devices_of(study: Study, meter: UsageMeter | None = None, folder: str | Path = "") -> SharedDevices:
    """The placer of a study whose jobs share devices by what they need.

    Args:
        meter: measures running jobs.
        folder: of the study, where a function that was sent by value lies.
    """
    spec, packing = study.spec, study.spec.packing_settings
    objective, code = spec.objective or "", ""
    if spec.objective is not None:
        code = objective_digest(spec.objective, spec.pythonpath)
    past = QuietMeasurements(study.journal.measurements).read(objective, code)
    function = None
    if (name := packing.demand.function) is not None:
        function = load_objective(placed(name, folder), spec.pythonpath, setting="packing.demand.function")
    estimates = Estimates(
        objective=objective,
        code=code,
        study=spec.study,
        by=spec.deciding,
        stated=StatedDemand(packing.demand.stated(), function),
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


def packing(parts: RunParts) -> None:
    placer = shared_devices_of(parts.study, parts.meter, parts.folder)
    parts.placer = placer
    history = MeasurementWriter(parts.study, placer.estimates)
    # many placements in one entry; a job that ended before a tick is left out: its report says where it ran
    parts.ticks += [lambda: parts.study.note_placements(placer.new_placements()), history.on_tick]
    parts.closing.append(history.write)
    parts.news(placer.news)


def _alone(study: Study) -> list[int]:
    trials = study.state.trials
    return [trial.number for trial in trials if any(one.outcome is Outcome.OUT_OF_MEMORY for one in trial.failures)]


def learn_from_journal(study: Study, estimates: Estimates) -> None:
    """Learn what the study's own journal holds; the history has most of it, but not the last seconds before a crash."""
    spec = study.spec
    for trial in study.state.trials:
        params = {**spec.constants, **trial.params}
        for result in trial.results:
            if isinstance(result.usage, Usage):
                estimates.learn(params, result.usage, at=result.ended)
        for failure in trial.failures:
            used = failure.usage
            if failure.outcome is Outcome.OUT_OF_MEMORY and isinstance(used, Usage) and used.share is not None:
                peak = used.memory if used.device_memory is None else used.device_memory
                estimates.raise_after_out_of_memory(
                    params, used.architecture, had=used.share[1], at=failure.ended, measured=peak
                )


class MeasurementWriter:
    """Writes what a study measured into the history, for this study's next controller and for other studies."""

    def __init__(self, study: Study, estimates: Estimates) -> None:
        self._estimates = estimates
        self._history = QuietMeasurements(study.journal.measurements)
        self._next = time.monotonic() + WRITE_SECONDS

    def on_tick(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + WRITE_SECONDS
            self.write()

    def write(self) -> None:
        self._history.add(self._estimates.new_measurements())  # and what an earlier write could not


_OURS = ("hpo_core", "hpo_flows")


def objective_digest(objective: str, pythonpath: Sequence[str] = ()) -> str:
    """SHA-256 of the function's name and of the files with its code; nothing of the user's is imported.

    These are the file of its module and of all that this imports from the same places, as a model defined in another
    file decides what a job needs, too. Of an installed package it is the module's file alone. A class or a callable
    object counts by its module. Where no file is found (an extension module, code that lies on the workers alone) it
    is the digest of the name.

    Args:
        objective: ``package.module:function``; of one that was sent by value its digest counts.
        pythonpath: folders that are searched before ``sys.path``.
    """
    if (digest := digest_of(objective)) is not None:
        return digest
    found = hashlib.sha256(objective.encode(errors="backslashreplace"))
    files = [(file.name, file.path) for file in code_files([objective], pythonpath, leave_out=_OURS)]
    if not files and (installed := _installed(objective.partition(":")[0])) is not None:
        files = [(installed.name, installed)]
    for name, path in files:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        found.update(f"\n{name} {hashlib.sha256(content).hexdigest()}".encode(errors="backslashreplace"))
    return found.hexdigest()


def _installed(module: str) -> Path | None:
    # The source of an installed module, found by the names above it; parent packages are not imported.
    top, *below = module.split(".")
    try:
        spec = sys.modules[top].__spec__ if top in sys.modules else importlib.util.find_spec(top)
        for name in below:
            folders = None if spec is None else spec.submodule_search_locations
            spec = PathFinder.find_spec(f"{spec.name}.{name}", list(folders)) if spec and folders and name else None
    except (OSError, ImportError, ValueError, AttributeError, SyntaxError):
        return None
    return None if spec is None or spec.origin is None or not spec.origin.endswith(".py") else Path(spec.origin)
