"""PooledDevices: an executor that offers the devices that its study holds by name in a pool, each of them whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import msgspec

from hpo_core.execution.by_name.device_holding import DeviceHolding
from hpo_core.execution.executor import Executor, OnReport
from hpo_core.execution.pool_seat import PoolSeat
from hpo_core.execution.pooled_executor import PooledExecutor, Submitted
from hpo_core.model.devices.inventory import Capacity, Device, Inventory, Slot
from hpo_core.model.trial import Job
from hpo_core.placement.shares.members import Position, longest_asking


class PooledDevices(PooledExecutor):
    """Runs jobs on another executor, on devices that the study holds in a pool: at any time one study has a device.

    A device that the study does not hold, or is to give back, is offered without slots: it is there, its jobs go on,
    and none begins.

    Args:
        inner: runs the jobs; its clock tells the time. Slots of its inventory say which device a job gets.
        seat: of the study in its pool, which holds devices.
        usable: of all devices that are there those that the study can use now, preferred ones first; default: all.
    """

    def __init__(
        self, inner: Executor, seat: PoolSeat, usable: Callable[[Sequence[str]], Sequence[str]] | None = None
    ) -> None:
        super().__init__(inner, seat)
        assert seat.devices is not None
        self._holding: DeviceHolding = seat.devices
        self._usable = usable
        self._pool_names: dict[str, str] = {}
        """By name of a device here: what all studies of the pool know it by."""
        self._there: list[str] = []

    @property
    def used(self) -> int:
        """Devices on which jobs run."""
        with self._lock:
            return len(_devices_of(self._running.values()))

    def held(self) -> list[str]:
        """Devices that nobody else uses now, by their names here; jobs may run on more after a time unseen."""
        held = set(self.seat.mine.devices) if self.seat.is_fresh(self.now()) else set()
        return [name for name in self._there if self._pool_names[name] in held]

    def inventory(self) -> Inventory:
        """All devices that are there; those on which no job may begin have no slots."""
        inventory = self._inner.inventory()
        self._pool_names |= {device.name: pool_name(device) for device in inventory.devices}
        self._there = [device.name for device in inventory.devices]
        self._seen = len(self._there)
        self._exchange()
        now = self.now()
        begin = set(self._holding.open_of(self.seat.mine, now)) if self.seat.is_fresh(now) else set()
        return Inventory(
            tuple(
                device if self._pool_names[device.name] in begin else msgspec.structs.replace(device, slots=0)
                for device in inventory.devices
            )
        )

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Start a job, if its device is still held: then it is, from now on, until the job ends."""
        with self._lock:
            self._waiting.append(Submitted(job, slot, on_report))
            self._busiest = max(self._busiest, self._busy())
        self._exchange()
        self._start_waiting()

    def _exchange(self) -> None:
        usable = self._there if self._usable is None else self._usable(self._there)
        known = self._pool_names
        with self._lock:
            used = _devices_of([*self._running.values(), *self._waiting])
        self._holding.note(
            there=[known[name] for name in self._there],
            usable=[known[name] for name in usable if name in known],
            used=[known.get(name, name) for name in used],
        )
        super()._exchange()

    def _busy(self) -> int:
        return len(_devices_of([*self._running.values(), *self._waiting]))

    def _start_waiting(self) -> None:
        if not self.seat.is_fresh(self.now()):
            return  # until the pool can be read again
        held = set(self.seat.mine.devices)
        with self._lock:
            ready = [each for each in self._waiting if self._names(each) <= held]
            gone = {each.job.key for each in self._waiting} - {each.job.key for each in ready}
            self._waiting = [each for each in self._waiting if each.job.key in gone]
            self._running |= {each.job.key: each for each in ready}
        for each in ready:
            self._start(each)
        if gone:
            kind = self._holding.kind
            self._drop(gone, f"Its {kind} went to another study of the pool before it began; it gets another one.")

    def _give_up_oversized(self) -> None:
        """A job uses the device that it was placed on, and waits for no other."""

    def _preemption(self, position: Position) -> tuple[str | None, list[tuple[int, int]]]:
        """All attempts on one of the devices that are to be given back, that whose youngest attempt is youngest."""
        longest = longest_asking(self.seat.mine, self.seat.others, position)
        if longest is None:
            return None, []
        closing = set(self.seat.mine.devices).difference(self._holding.open_of(self.seat.mine, self.now()))
        for name in reversed(_devices_of(self._running.values())):
            if self._pool_names.get(name) in closing:
                keys = [key for key, each in self._running.items() if each.slot.name == name]
                if self._spared.isdisjoint(trial for trial, _ in keys):
                    return longest, keys
        return None, []

    def _names(self, each: Submitted) -> set[str]:
        return {self._pool_names.get(slot.name, slot.name) for slot in each.slot.ranks}


def pool_name(device: Device) -> str:
    """What all studies know a device by. The processors of a computer may have another name in each study."""
    if not isinstance(device.capacity, Capacity) or device.capacity.gpu:
        return device.name
    computer = hashlib.sha256(device.capacity.node.encode()).hexdigest()[:6]
    return f"{device.name.partition('~')[0]}~{computer}"


def _devices_of(submitted: Iterable[Submitted]) -> list[str]:
    """Their devices; the one with the youngest job last."""
    names = [slot.name for each in submitted for slot in each.slot.ranks]
    return list(dict.fromkeys(reversed(names)))[::-1]
