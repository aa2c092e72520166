"""From what the workers see to the devices that jobs can share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from hpo_core.model.devices.inventory import Capacity, Device, Inventory
from hpo_core.model.devices.seen_device import SeenDevice

RESERVE = 0.05
"""Share of a device's memory that is left to drivers, allocators and what comes and goes."""
STEPS = 64
"""Free memory is rounded down to such a part of the device: every heartbeat shows some other figure."""

Seen = Mapping[str, Mapping[str, SeenDevice]]
"""By address of a worker, by name of a device: what it sees (:mod:`hpo_core.training.visible_devices`)."""


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


class DeviceNames:
    """Tells devices of one name in different computers apart, as the processors of two that have one host name.

    A device keeps the name that it got first here. The first computer has it as it is, those that join it get an end.
    """

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        """By name and computer."""

    def told_apart(self, seen: Seen) -> Seen:
        """The same devices, no two under one name."""
        keys = [(name, _computer(facts)) for _, devices in sorted(seen.items()) for name, facts in devices.items()]
        for name, computer in dict.fromkeys(keys):
            if (name, computer) not in self._given:
                taken = {self._given[key] for key in keys if key in self._given}
                end = f"~{hashlib.sha256(computer.encode()).hexdigest()[:6]}" if name in taken else ""
                absent = [key for key, given in self._given.items() if given == f"{name}{end}"]
                for key in absent:  # it had the name, and gets another one if it comes back
                    del self._given[key]
                self._given[name, computer] = f"{name}{end}"
        return {
            address: {self._given[name, _computer(facts)]: facts for name, facts in devices.items()}
            for address, devices in seen.items()
        }


def workers_of(seen: Seen, name: str) -> list[str]:
    """Addresses of the workers that see a device."""
    return [address for address in sorted(seen) if name in seen[address]]


def _computer(facts: SeenDevice) -> str:
    return f"{facts.node} {facts.boot}".strip()


def _capacity(facts: SeenDevice, own: int) -> Capacity:
    total = facts.memory
    step = max(1, total // STEPS)
    others = max(0, facts.used - own)
    most = max(0, total - round(RESERVE * total)) // step * step
    free = max(0, total - others - round(RESERVE * total)) // step * step
    return Capacity(
        node=_computer(facts),
        architecture=facts.architecture,
        memory=most,
        free=free,
        cores=facts.cores,
        gpu=facts.gpu,
    )
