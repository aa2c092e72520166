"""One study on virtual workers: the real loop with the virtual executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpo_core.execution.loop import Loop
from hpo_core.execution.packed_placing import PlacementWriter
from hpo_core.execution.virtual import NO_FAULTS, Faults, Load, VirtualClock, VirtualDevices, VirtualExecutor, Worker
from hpo_core.model.devices.inventory import Capacity, Device, Slot
from hpo_core.model.trial import Job, Metrics, Outcome, Point
from hpo_core.placement.placer import Placer
from hpo_core.placement.policies import POLICIES
from hpo_core.placement.room import SharedDevice
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.simulation.simulated_needs import KnownJobs, SimulatedNeeds
from hpo_core.spec import PackingSpec, StudySpec
from hpo_core.spec.assembly import is_pure
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
        curve: metrics on the way to the target, for methods that read curves (``study.method.reads_curves``).
        checkpoints: whether results carry a (made up) checkpoint, so that later jobs resume.
        faults: stragglers and drops.
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
        curve: Callable[[Job], Sequence[Point]] | None = None,
        checkpoints: bool = True,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.study = study
        self.clock = clock
        self.executor = VirtualExecutor(
            clock,
            workers=workers,
            train=train,
            seconds=seconds,
            speedup=speedup,
            objectives=[metric.name for metric in study.spec.objectives],
            curve=curve,
            checkpoints=checkpoints,
            faults=faults,
        )

        def expected(job: Job) -> float:
            return seconds(job) / (job.demand.slots if speedup is None else speedup(job))

        gangs = study.spec.gangs
        self._loop = Loop(study, self.executor, placer=Placer(expected) if gangs else None)

    def run(self, until: float = math.inf, max_reports: int | None = None) -> None:
        """Go on until the study has nothing to run, the clock says ``until``, or so many reports came.

        Ends early, with the study open, where the last worker left.
        """
        self._loop.run(until=until, max_reports=max_reports)

    @property
    def offered_seconds(self) -> float:
        """Time in which workers were there, until now."""
        return self.executor.offered_seconds

    @property
    def busy_seconds(self) -> float:
        """Time in which workers ran attempts, good or bad."""
        return self.executor.busy_seconds

    @property
    def lost_seconds(self) -> float:
        """Part of it that ended without a result."""
        return self.executor.lost_seconds

    @property
    def utilization(self) -> float:
        """Share of the workers' time so far in which they ran something."""
        return self.executor.utilization


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
        more: ``curve``, ``checkpoints``, ``faults``, as of :class:`~hpo_core.simulation.simulation.Simulation`.
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
        curve: Callable[[Job], Sequence[Point]] | None = None,
        checkpoints: bool = True,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.study = study
        self.clock = clock
        self.devices = VirtualDevices(
            clock,
            devices=cluster.devices,
            load=_Loads(study.spec, cluster, needs, seconds),
            train=train,
            poll_seconds=max(LEAST_POLL, time_unit, cluster.known.unit_seconds),
            objectives=[metric.name for metric in study.spec.objectives],
            curve=curve,
            checkpoints=checkpoints,
            faults=faults,
        )
        self.executor = self.devices
        settings = cluster.settings()
        spec = study.spec
        placer = SharedDevices(
            settings,
            POLICIES[settings.policy](),
            needs,
            constants=spec.constants,
            free_choice=spec.search.outline().independent and is_pure(spec),
        )
        self._loop = Loop(study, self.devices, placer=placer, observers=[PlacementWriter(study, placer)])


class _Loads:
    """What a job is to the device that it is placed on."""

    def __init__(
        self, spec: StudySpec, cluster: SharedCluster, needs: SimulatedNeeds, seconds: Callable[[Job], float]
    ) -> None:
        self._constants = dict(spec.constants)
        self._needs = needs
        self._seconds = seconds
        self._measured = cluster.measured_durations
        self._capacities = {
            device.name: device.capacity for device in cluster.devices if isinstance(device.capacity, Capacity)
        }
        nodes = [capacity.node for capacity in self._capacities.values()]
        self._beside = {name: nodes.count(capacity.node) for name, capacity in self._capacities.items()}
        self._reference = cluster.known.architecture or next(iter(self._capacities.values())).architecture

    def __call__(self, job: Job, slot: Slot) -> Load:
        capacity = self._capacities[slot.name]
        begun = job.checkpoint.resource if job.checkpoint is not None else 0
        device = SharedDevice(
            name=slot.name, node=capacity.node, architecture=capacity.architecture, memory=capacity.memory
        )
        params = {**self._constants, **job.params}
        need = self._needs.of(
            params,
            units=job.target - begun,
            device=device,
            node_cores=capacity.cores,
            devices_on_node=self._beside[slot.name],
        ).need
        return Load(self._alone(job, params, device), need.compute)

    def _alone(self, job: Job, params: dict[str, Any], device: SharedDevice) -> float:
        """Seconds on this device, nothing beside it."""
        seconds = self._seconds(job)
        here = self._needs.duration(params, device)
        if here is None:
            return seconds
        if self._measured:
            return here[0] + here[1] * seconds  # the workload counts a unit as one second
        if device.architecture == self._reference:
            return seconds
        there = SharedDevice(name="", node="", architecture=self._reference, memory=device.memory)
        reference = self._needs.duration(params, there)
        return seconds if reference is None else seconds * here[1] / reference[1]
