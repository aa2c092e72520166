"""What jobs can run on (devices and their slots), and what one job needs of it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from hpo_core.model.devices.share import Share


class Demand(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a job needs. Every job needs one slot, so there is nothing to say yet."""


ONE_SLOT = Demand()


class Capacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What there is of a device that several jobs share."""

    node: str
    """The computer it is in, whose cores its jobs use."""
    architecture: str
    """Such as ``A100``, or ``CPU``: demands are told apart by it."""
    memory: int
    """Bytes that jobs may use together where nobody else uses any: all but a reserve."""
    free: int
    """Bytes of them that jobs of this study may use together now: what others use is left out."""
    cores: int
    """CPU cores of the node, in thousandths."""
    gpu: bool = False


class Device(msgspec.Struct, frozen=True, gc=False):
    """A place where jobs run: a worker, a GPU, or a whole cluster that places jobs by itself.

    Raises:
        ValueError: ``slots`` is negative.
    """

    name: str
    slots: int = 1
    """Jobs that can run here at once."""
    capacity: Capacity | msgspec.UnsetType = msgspec.UNSET
    """For a device that jobs share by what they need; not set where each job takes a slot."""

    def __post_init__(self) -> None:
        if self.slots < 0:
            raise ValueError(f"Device {self.name!r}: slots = {self.slots} must be 0 or more.")


class Inventory(msgspec.Struct, frozen=True):
    """All devices that are there now.

    >>> Inventory.of(3).slots, Inventory((Device("gpu-0", 2), Device("gpu-1"))).slots, Inventory().slots
    (3, 3, 0)
    """

    devices: tuple[Device, ...] = ()

    @classmethod
    def of(cls, slots: int, name: str = "") -> Inventory:
        """One device with so many slots; none for 0."""
        return cls((Device(name, slots),)) if slots else cls()

    @property
    def slots(self) -> int:
        """Jobs that can run at once."""
        return sum(device.slots for device in self.devices)


EMPTY = Inventory()


class Slot(NamedTuple):
    """One place for one job. Slots sort in the inventory's order."""

    device: int
    """Place of the device in the inventory's order."""
    number: int
    """From 0 on that device."""
    name: str
    """Name of the device."""
    share: Share | None = None
    """The part of the device that comes with it; None: whatever is there."""
