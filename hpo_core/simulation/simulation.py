"""One study on virtual workers: the real loop with the virtual executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpo_core.execution.executor import Executor
from hpo_core.execution.loop import Loop, Observer
from hpo_core.execution.placing import PlacementWriter
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor, Worker
from hpo_core.execution.virtual_devices import Load, VirtualDevices
from hpo_core.model.devices.inventory import Device, Slot
from hpo_core.model.trial import Job, Metrics, Outcome
from hpo_core.placement.placer import Placer
from hpo_core.placement.policies import POLICIES
from hpo_core.placement.room import SharedDevice
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.simulation.simulated_needs import KnownJobs, SimulatedNeeds
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import is_pure
from hpo_core.spec.packing import PackingSpec
from hpo_core.study import Study


class Simulation:
    """Drives a study in virtual time.

    Args:
        study: its clock must be ``clock``.
        clock: moved forward by :meth:`run`.
        workers: how many of speed 1, or each one.
        train: what training a job gives: metrics at its target, or an outcome other than completed.
        seconds: virtual duration of a job on a worker of speed 1.
        speedup: how many times as fast a gang trains as one worker; default: as many times as it has ranks.
        least: workers that stay; the others are there while the study can use them. None: all stay.
        more: as of the virtual executor: ``curve`` (for methods that read curves, ``study.method.reads_curves``),
            ``checkpoints`` (whether results carry a made up one, so that later jobs resume), ``faults``.
    """

    def __init__(
        self,
        study: Study,
        clock: VirtualClock,
        *,
        workers: int | Sequence[Worker],
        train: Callable[[Job], Metrics | Outcome],
        seconds: Callable[[Job], float],
        speedup: Callable[[Job], float] | None = None,
        least: int | None = None,
        **more: Any,
    ) -> None:
        executor = VirtualExecutor(
            clock, workers=workers, train=train, seconds=seconds, speedup=speedup, **_metrics(study), **more
        )

        if least is not None:
            executor.follow(study.demand, least)

        def expected(job: Job) -> float:
            return seconds(job) / (job.demand.slots if speedup is None else speedup(job))

        self._drive(study, executor, executor, Placer(expected))

    def _drive(
        self,
        study: Study,
        virtual: VirtualExecutor,
        executor: Executor,
        placer: Placer | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.study = study
        self.clock = virtual.clock
        self.executor = virtual
        """Counts the seconds of its workers: offered, busy, lost."""
        self._loop = Loop(study, executor, placer=placer, observers=observers)

    def run(self, until: float = math.inf, max_reports: int | None = None) -> None:
        """Go on until the study has nothing to run, the clock says ``until``, or so many reports came.

        Ends early, with the study open, where the last worker left.
        """
        self._loop.run(until=until, max_reports=max_reports)


def _metrics(study: Study) -> dict[str, Any]:
    return {"objectives": [metric.name for metric in study.spec.objectives]}


ONE_PER_DEVICE = "one job per device"
"""As a policy: jobs share nothing."""
LEAST_POLL = 1.0
"""Seconds between two looks of a real loop."""


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """Devices, and how jobs are put on them.

    Args:
        devices: of a device list.
        policy: a name of ``packing.policy``, or :data:`ONE_PER_DEVICE`.
        packing: the study's settings, or the defaults.
        known: what jobs were measured to need.
        measured_durations: a job takes as long as was measured, where that is known, instead of the workload's time.
    """

    devices: tuple[Device, ...]
    policy: str
    packing: PackingSpec
    known: KnownJobs
    measured_durations: bool = False

    def needs(self, spec: StudySpec) -> SimulatedNeeds:
        """What its jobs need.

        Raises:
            SpecError: nothing says so.
        """
        return SimulatedNeeds(spec, self.packing, self.devices, self.known)

    def settings(self) -> PackingSpec:
        """Settings of the placement; one job per device is packing with at most one."""
        if self.policy == ONE_PER_DEVICE:
            changes: dict[str, Any] = {"policy": "first_fit", "most": 1, "look_ahead": 1}
        else:
            changes = {"policy": self.policy}
        return self.packing.model_copy(update=changes)


class SharedSimulation(Simulation):
    """Drives a study on virtual devices that its jobs share.

    Args:
        study: its clock must be ``clock``.
        clock: moved forward by :meth:`run`.
        cluster: devices and policy.
        needs: of its jobs.
        train: what training a job gives.
        seconds: virtual duration of a job by the workload: alone, on the architecture where most was measured.
        time_unit: seconds of a unit of training, roughly.
        more: as of :class:`~hpo_core.simulation.simulation.Simulation`.
    """

    def __init__(
        self,
        study: Study,
        clock: VirtualClock,
        *,
        cluster: SharedCluster,
        needs: SimulatedNeeds,
        train: Callable[[Job], Metrics | Outcome],
        seconds: Callable[[Job], float],
        time_unit: float,
        **more: Any,
    ) -> None:
        spec, settings = study.spec, cluster.settings()
        self._needs = needs
        self._cluster = cluster
        self._seconds = seconds
        self._placer = SharedDevices(
            settings,
            POLICIES[settings.policy](),
            needs,
            constants=spec.constants,
            free_choice=spec.search.outline().independent and is_pure(spec),
        )
        self.devices = VirtualDevices(
            clock,
            devices=cluster.devices,
            load=self._load,
            train=train,
            poll_seconds=max(LEAST_POLL, time_unit, cluster.known.unit_seconds),
            **_metrics(study),
            **more,
        )
        self._drive(study, self.devices, self.devices, self._placer, [PlacementWriter(study, self._placer)])

    def _load(self, job: Job, slot: Slot) -> Load:
        """What a job is to the device that it is placed on."""
        room = self._placer.room
        device = room.whole[slot.name]
        return Load(self._alone(job, device), room.estimate(job, device).need.compute)

    def _alone(self, job: Job, device: SharedDevice) -> float:
        """Seconds on this device, nothing beside it."""
        seconds, params = self._seconds(job), self._placer.room.parameters(job)
        here = self._needs.duration(params, device)
        if here is None:
            return seconds
        if self._cluster.measured_durations:
            return here[0] + here[1] * seconds  # the workload counts a unit as one second
        reference = self._cluster.known.architecture or self._placer.room.everything.devices[0].architecture
        if device.architecture == reference:
            return seconds
        there = self._needs.duration(params, msgspec.structs.replace(device, architecture=reference))
        return seconds if there is None else seconds * here[1] / there[1]
