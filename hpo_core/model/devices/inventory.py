"""Devices and their slots, and the part of them that one job needs."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec


class Portion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A device, and how much of it an attempt was given. Whole numbers, so that sums are exact."""

    device: str
    """Name of the device: a GPU's UUID, or the name of a computer whose processors are shared."""
    architecture: str
    """Such as ``A100``, or ``CPU``."""
    compute: int
    """Permille of the device."""
    memory: int
    """Bytes: of the GPU's memory, or of the computer's where jobs share its processors."""
    cores: int
    """CPU cores, in thousandths."""
    capacity: int
    """Bytes of the device that jobs may use together."""
    gpu: bool = False
    """True for a GPU: ``device`` is then its name in ``CUDA_VISIBLE_DEVICES``."""
    alone: bool = False
    """True if no other job is placed beside it, as after it ran out of memory."""
    mps: str = ""
    """Folder of the pipes of the GPU's MPS daemon, as the worker found it; empty: CUDA shares the GPU by itself."""

    @property
    def allowed(self) -> int:
        return self.capacity if self.alone else self.memory

    def lowered(self, memory: int) -> Portion:
        return self if memory >= self.memory else msgspec.structs.replace(self, memory=memory)

    @property
    def amounts(self) -> tuple[int, int, int]:
        return self.compute, self.allowed, self.cores


class Demand(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The resources that a job needs, on one architecture. Whole numbers, so that sums are exact.

    A grant says how many slots; where jobs share devices the placer completes it by what is stated and was measured.
    """

    slots: int = 1
    """Slots that it holds at once: the ranks of a gang, or one."""
    compute: int = 0
    """Permille of one device, before oversubscription; 0: a slot is all that it asks for."""
    memory: int = 0
    """Bytes of the device's memory at the peak."""
    cores: int = 0
    """CPU cores of the node, in thousandths."""
    seconds: float = 0.0
    """Expected run time: it orders the jobs of policies that begin the longest first."""


ONE_SLOT = Demand()


def slots_demand(slots: int) -> Demand:
    """The demand of a job of so many slots; the same object for one, which the journal leaves out.

    >>> slots_demand(1) is ONE_SLOT, slots_demand(4).slots
    (True, 4)
    """
    return ONE_SLOT if slots == 1 else Demand(slots)


class Capacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The resources of a device that several jobs share."""

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


class HeldPartitions(msgspec.Struct, frozen=True):
    """Partitions of a study's data that lie on a worker."""

    names: frozenset[str] = frozenset()
    problems: dict[str, str] = {}
    """Why a partition that is there cannot be used, by its name."""
    announcing: bool = False
    """True if the worker has not told yet which partitions it holds, or reads one now."""


NO_PARTITIONS = HeldPartitions()


class Device(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A place where jobs run: a worker, a GPU, or a whole cluster that places jobs by itself.

    Raises:
        ValueError: ``slots`` is negative.
    """

    name: str
    slots: int = 1
    """Jobs that can run here at once."""
    capacity: Capacity | msgspec.UnsetType = msgspec.UNSET
    """For a device that jobs share by what they need; not set where each job takes a slot."""
    partitions: HeldPartitions = NO_PARTITIONS
    """Partitions that lie on a worker, where models hop over them."""

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
        return cls((Device(name, slots),)) if slots else cls()

    @classmethod
    def of_shared(cls, jobs: int, devices: int) -> Inventory:
        """The inventory of a packed study: so many jobs, on so many devices that these share.

        >>> Inventory.of_shared(12, 2).slots, Inventory.of_shared(12, 2).devices[0].name
        (12, '2 shared devices')
        """
        return cls.of(jobs, f"{devices} shared device{'' if devices == 1 else 's'}")

    @property
    def workers(self) -> int:
        return sum(device.slots > 0 for device in self.devices)

    @property
    def slots(self) -> int:
        return sum(device.slots for device in self.devices)


EMPTY = Inventory()


class Slot(NamedTuple):
    """One place for one job, or for a rank of one. Slots sort in the inventory's order."""

    device: int
    """Place of the device in the inventory's order."""
    number: int
    """From 0 on that device."""
    name: str
    """Name of the device."""
    portion: Portion | None = None
    """The part of the device that comes with it; None: whatever is there."""
    others: tuple[Slot, ...] = ()
    """Slots of a gang's other ranks, from rank 1 on."""

    @property
    def ranks(self) -> tuple[Slot, ...]:
        return (self._replace(others=()), *self.others) if self.others else (self,)


_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))


def memory_words(amount: int, *, beside: tuple[int, ...] = ()) -> str:
    """An amount with three digits, or as many as tell it apart from others.

    Args:
        beside: amounts that a reader compares it with.

    >>> memory_words(212_400_000), memory_words(6_442_450_944), memory_words(81_920), memory_words(999_999_999)
    ('212 MB', '6.44 GB', '81.9 kB', '1000 MB')
    >>> memory_words(400_000_000, beside=(399_990_000,)), memory_words(399_990_000, beside=(400_000_000,))
    ('400 MB', '399.99 MB')
    """
    others = [other for other in beside if other != amount]
    digits = 3
    while any(_rounded(amount, digits) == _rounded(other, digits) for other in others):
        digits += 1
    return _rounded(amount, digits)


def _rounded(amount: int, digits: int) -> str:
    size, name = next(((size, name) for size, name in _UNITS if abs(amount) >= size), _UNITS[-1])
    return f"{float(f'{amount / size:.{digits}g}'):.15g} {name}"


_Amount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class SeenDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at a device; sent with the heartbeats of a worker."""

    node: Annotated[str, msgspec.Meta(min_length=1)]
    """Name of the computer it is in."""
    boot: str = ""
    """Another one for another computer of that name."""
    architecture: Annotated[str, msgspec.Meta(min_length=1)]
    """Such as ``A100``, or ``CPU``."""
    memory: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    """Bytes in all."""
    used: _Amount
    """Bytes in use, by whomever."""
    own: dict[str, _Amount] = {}
    """Bytes of them that attempts of this worker use, by folder of their study."""
    by_growth: bool = False
    """True if ``own`` is what the device's use grew by since none ran here: other workers' attempts are in it, too."""
    cores: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    """CPU cores of the computer, in thousandths."""
    gpu: bool = False
