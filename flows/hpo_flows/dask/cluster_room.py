"""The room of a Dask cluster: its workers as slots, computers, shared devices or holders of partitions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from distributed.comm.addressing import get_address_host

from hpo_core.model.devices.inventory import Capacity, Device, HeldPartitions, Inventory, SeenDevice
from hpo_core.model.trial import Doubt
from hpo_flows.dask.lost_workers import ClusterWatch
from hpo_flows.dask.worker_facts import WorkerFacts, WorkerQuestions

ANY_WORKER = "dask"
"""Name of the place where Dask picks the worker."""
DOUBT_SECONDS = 15.0
"""Seconds for which the slots of a worker that lost a rank do not count, unless the watch finds it gone before."""
RESERVE = 0.05
"""Share of a device's memory that is left to drivers, allocators and what comes and goes."""
STEPS = 64
"""Free memory is rounded down to 1/64 of the device: every heartbeat shows some other figure."""

Seen = Mapping[str, Mapping[str, SeenDevice]]
"""Devices that each worker sees (:mod:`hpo_core.training.visible_devices`), by address and name of the device."""


class ClusterRoom:
    """Names the places where jobs of one study can run, and the workers at each of them.

    Args:
        watch: of the workers.
        asked: what they are to tell: jobs take slots, shared devices, computers (gangs) or workers (models that hop).
    """

    def __init__(self, watch: ClusterWatch, asked: WorkerQuestions) -> None:
        self.asked = asked
        self._watch = watch
        self._names = [file.name for file in asked.partitions]
        if asked.partitions:
            self._places = self._holders
        elif asked.computers:
            self._places = self._computers
        else:
            self._places = self._devices if asked.devices else self._one_place
        self._lost_ranks: dict[str, float] = {}
        """Moment until which a worker that lost a rank is doubted, by its address."""
        self._lost_units: dict[tuple[str, str], int] = {}
        """Number of the look from which on a worker must have looked at a partition again, by address and its name."""

    def inventory(self) -> Inventory:
        return self._places()

    def workers_at(self, place: str) -> tuple[str, ...] | None:
        """Addresses of the workers at a place that :meth:`inventory` named, or of a worker itself; None: Dask picks."""
        if place == ANY_WORKER:
            return None
        if self._watch.is_well(place):
            return (place,)
        there = tuple(address for address in self._undoubted() if host_of(address) == place)
        return there or tuple(address for address, devices in sorted(self._seen().items()) if place in devices)

    def threads(self) -> dict[str, int]:
        """Slots of each worker that is well, by address."""
        return {address: facts.threads for address, facts in self._watch.well().items()}

    def doubt_partition(self, address: str, doubt: Doubt) -> None:
        """A unit was lost for its partition: it does not lie there until the worker has looked again and says so.

        Its last word is older than the unit's report: heartbeats come once in a while.
        """
        self._lost_units[address, doubt.partition] = doubt.looked

    def doubt_worker(self, address: str) -> None:
        """A worker lost a rank, and the scheduler may still list it: ranks are pinned to workers."""
        self._lost_ranks[address] = time.monotonic() + DOUBT_SECONDS

    # Kinds of places.

    def _one_place(self) -> Inventory:
        return Inventory.of(self._watch.slots(), ANY_WORKER)

    def _computers(self) -> Inventory:
        threads: Counter[str] = Counter()
        for address, count in self._undoubted().items():
            threads[host_of(address)] += count
        return Inventory(tuple(Device(host, threads[host]) for host in sorted(threads)))

    def _devices(self) -> Inventory:
        return shared_inventory(self._seen(), self.asked.folder, self.asked.jobs_on_device)

    def _holders(self) -> Inventory:
        workers = sorted(self._watch.well().items())
        return Inventory(
            tuple(
                Device(address, facts.threads, partitions=self._held_by(address, facts)) for address, facts in workers
            )
        )

    def _held_by(self, address: str, facts: WorkerFacts) -> HeldPartitions:
        told = facts.partitions
        if told is None:
            return HeldPartitions(announcing=True)
        names = frozenset(
            name
            for place, name in enumerate(self._names)
            if place in told.places and told.looked >= self._lost_units.get((address, name), 0)
        )
        return HeldPartitions(names, told.problems, told.reading)

    def _undoubted(self) -> dict[str, int]:
        threads, now = self.threads(), time.monotonic()
        for address, until in list(self._lost_ranks.items()):
            if address not in threads or now >= until:
                del self._lost_ranks[address]
        return {address: count for address, count in threads.items() if address not in self._lost_ranks}

    def _seen(self) -> Seen:
        return {address: facts.devices or {} for address, facts in self._watch.well().items()}


def shared_inventory(seen: Seen, folder: str, most: int) -> Inventory:
    """The devices that some worker sees, node by node.

    Several workers may see one device. What none of them uses for attempts of this study is used by others, be they
    attempts of another study in the same worker.

    Args:
        folder: of the study.
        most: jobs on one device at once.
    """
    first: dict[str, SeenDevice] = {}
    own: dict[str, int] = {}
    for address in sorted(seen):
        for name, facts in seen[address].items():
            first.setdefault(name, facts)
            mine = facts.own.get(folder, 0)
            own[name] = max(own.get(name, 0), mine) if facts.by_growth else own.get(name, 0) + mine
    devices = [
        Device(name, most, _capacity(first[name], own[name]))
        for name in sorted(first, key=lambda name: (first[name].node, first[name].boot, name))
    ]
    return Inventory(tuple(devices))


def host_of(address: str) -> str:
    return str(get_address_host(address))


def _capacity(facts: SeenDevice, own: int) -> Capacity:
    total = facts.memory
    step = max(1, total // STEPS)
    others = max(0, facts.used - own)
    most = max(0, total - round(RESERVE * total)) // step * step
    free = max(0, total - others - round(RESERVE * total)) // step * step
    return Capacity(
        node=f"{facts.node} {facts.boot}".strip(),
        architecture=facts.architecture,
        memory=most,
        free=free,
        cores=facts.cores,
        gpu=facts.gpu,
    )
