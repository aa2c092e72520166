"""The devices of an inventory that jobs share, as rooms for a packing policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.model.devices.inventory import EMPTY, Capacity, Demand, Inventory
from hpo_core.model.devices.memory_words import memory_words
from hpo_core.model.trial import Job
from hpo_core.placement.estimates import Estimate, Estimates
from hpo_core.placement.packing.room import WHOLE, Room, SharedDevice
from hpo_core.spec import PackingSpec


class SharedRoom:
    """The devices that are there now, within the limits that a study sets.

    Args:
        packing: settings of the study.
    """

    def __init__(self, packing: PackingSpec) -> None:
        self._packing = packing
        self.learned: dict[str, float] = {}
        """Oversubscription by architecture, as attempts showed it to be best; what is stated or was tuned wins."""
        self.inventory = EMPTY
        self.capacities: dict[str, Capacity] = {}
        """By device that is there, also those without slots: jobs may run there, and none begins."""
        self.empty = Room(())
        """What jobs of this study may use, where none runs."""
        self.whole = Room(())
        """The same if nobody else used the devices."""
        self.everything = Room(())
        """The same with the devices without slots, which other studies may hold now."""

    def ratio(self, architecture: str) -> float:
        """How many times the compute of a device jobs may claim."""
        first = self._packing.ratio(architecture)
        return self.learned.get(architecture, first) if self._packing.finds_ratio(architecture) else first

    def update(self, inventory: Inventory, learned: Mapping[str, float] = {}) -> bool:
        """These devices are there now; returns whether anything changed.

        Args:
            learned: see :attr:`learned`.
        """
        if inventory == self.inventory and learned == self.learned:
            return False
        self.inventory, self.learned = inventory, dict(learned)
        self.capacities = {
            device.name: device.capacity for device in inventory.devices if isinstance(device.capacity, Capacity)
        }
        begin = {device.name: self.capacities[device.name] for device in inventory.devices
                 if device.slots and device.name in self.capacities}  # fmt: skip
        self.empty = self._room_of(begin, lambda capacity: capacity.free)
        self.whole = self._room_of(begin, lambda capacity: capacity.memory)
        self.everything = self._room_of(self.capacities, lambda capacity: capacity.memory)
        return True

    def _room_of(self, capacities: Mapping[str, Capacity], memory: Callable[[Capacity], int]) -> Room:
        limit = self._packing.memory_limit
        devices = [
            SharedDevice(
                name=name,
                node=capacity.node,
                architecture=capacity.architecture,
                memory=min(memory(capacity), limit(capacity.architecture) or memory(capacity)),
                oversubscribe=round(WHOLE * self.ratio(capacity.architecture)),
            )
            for name, capacity in capacities.items()
        ]
        cores = {}
        for capacity in capacities.values():
            ratio = 1.0 if capacity.gpu else self.ratio(capacity.architecture)  # of processors, cores are compute
            cores[capacity.node] = round(ratio * capacity.cores)
        return Room(devices, cores)

    def device(self, name: str) -> SharedDevice | None:
        """The whole device of this name; None where it is gone."""
        return next((one for one in self.everything.devices if one.name == name), None)

    def node_of(self, name: str) -> str | None:
        """The computer of a device; None where it is gone."""
        capacity = self.capacities.get(name)
        return None if capacity is None else capacity.node

    def largest(self) -> Iterator[SharedDevice]:
        """The device with the most memory of each architecture, taken whole."""
        found: dict[str, SharedDevice] = {}
        for device in self.everything.devices:
            known = found.get(device.architecture)
            if known is None or device.memory > known.memory:
                found[device.architecture] = device
        yield from found.values()

    def lacking(self, need_on: Callable[[SharedDevice], int]) -> list[str]:
        """In words, by device, how much memory a job needs and how much is free.

        Args:
            need_on: bytes that it needs on a whole device.
        """
        found = []
        for device, whole in zip(self.empty.devices, self.whole.devices, strict=True):
            amounts = need_on(whole), device.memory, whole.memory
            needed, free, all_of_it = (memory_words(amount, beside=amounts) for amount in amounts)
            found.append(f"{device.name} ({device.architecture}): it needs {needed}, {free} of {all_of_it} are free")
        return found


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
        """Parameters of a job and the study's constants."""
        return {**self._constants, **job.params}

    def demand(self, job: Job) -> dict[str, Demand]:
        """By architecture, whatever others use of the devices now."""
        return {device.architecture: self.need(job, device) for device in self._room.largest()}

    def need(self, job: Job, device: SharedDevice) -> Demand:
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
