"""What each job needs of the devices that are there: estimates within the settings of the study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.model.trial import Job
from hpo_core.placement.demands import Estimate, Estimates
from hpo_core.placement.packing.need import Need
from hpo_core.placement.packing.room import SharedDevice
from hpo_core.placement.shared_room import SharedRoom
from hpo_core.spec import PackingSpec


class JobNeeds:
    """Needs of one study's jobs.

    Args:
        packing: settings of the study.
        estimates: what each job will need.
        room: the devices that are there.
        constants: of the study; expressions of stated demands may read them.
        alone: trials whose last attempt ran out of memory, as the journal says.
    """

    def __init__(
        self,
        packing: PackingSpec,
        estimates: Estimates,
        room: SharedRoom,
        *,
        constants: Mapping[str, Any],
        alone: Iterable[int],
    ) -> None:
        self.estimates = estimates
        self.alone = set(alone)
        """Trials whose next attempt has its device to itself."""
        self._packing = packing
        self._room = room
        self._constants = dict(constants)

    def parameters(self, job: Job) -> dict[str, Any]:
        """Its own and the study's constants."""
        return {**self._constants, **job.params}

    def demand(self, job: Job) -> dict[str, Need]:
        """By architecture, whatever others use of the devices now."""
        return {device.architecture: self.need(job, device) for device in self._room.largest()}

    def need(self, job: Job, device: SharedDevice) -> Need:
        """What it is placed by on this device."""
        estimate = self.estimate(job, device)
        need = estimate.need
        least = device.oversubscribe // (self._packing.most + 1) + 1  # so that one more than most has no room
        compute = device.oversubscribe if job.trial in self.alone else max(need.compute, least)
        # what was measured did fit; a limit is not met to the byte
        memory = need.memory if estimate.source == "stated" else min(need.memory, device.memory)
        return msgspec.structs.replace(need, compute=compute, memory=memory)

    def estimate(self, job: Job, device: SharedDevice) -> Estimate:
        """What it will need there, as far as that is known."""
        begun = job.checkpoint.resource if job.checkpoint is not None else 0
        capacity = self._room.capacities[device.name]
        beside = sum(other.node == capacity.node for other in self._room.capacities.values())
        return self.estimates.of(
            self.parameters(job),
            units=job.target - begun,
            device=device,
            node_cores=capacity.cores,
            devices_on_node=beside,
        )

    def unknown_once(self, jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
        """Jobs, those last of whose kind one is being measured: what it shows would tell their needs."""
        first: list[Job] = []
        later: list[Job] = []
        begun: set[str] = set()
        architectures = {capacity.architecture for capacity in self._room.capacities.values()}
        for job in jobs:
            params = self.parameters(job)
            if all(self.estimates.is_known(params, name) for name in architectures):
                first.append(job)
                continue
            key = self.estimates.key(params)
            measured_now = key in begun or any(self.estimates.is_profiling(params, name) for name in architectures)
            (later if measured_now else first).append(job)
            begun.add(key)
        return first, later
