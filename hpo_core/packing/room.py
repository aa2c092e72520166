"""Room left on the devices of a cluster, for one decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from hpo_core.model.devices.inventory import Demand, memory_words
from hpo_core.views.formatting import listed

WHOLE = 1000
"""Compute of one device in permille, and one core in thousandths."""
UNLIMITED = 2**62

Assignment = tuple[int, int]
"""(place among the waiting jobs, place among the room's devices)."""
Demands = Mapping[str, Demand]
"""By architecture: what a job demands of one device there. It cannot run on an architecture that is not named.

HyperSack (Section III): a job p needs compute c_p, memory d_p and CPU cores q_p.
"""


class WaitingJob:
    """A job that waits for a device.

    Args:
        key: what the caller knows it by.
        demand: its need on each architecture.
    """

    __slots__ = ("demand", "key", "seconds")

    def __init__(self, key: object, demand: Demands) -> None:
        self.key = key
        self.demand: Demands = MappingProxyType(dict(demand))
        self.seconds = max((need.seconds for need in demand.values()), default=0.0)
        """Expected run time, on the architecture where it is longest."""

    def __repr__(self) -> str:
        return f"WaitingJob({self.key!r}, {dict(self.demand)!r})"


class SharedDevice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A device that several jobs share: a GPU, a slice of one, or the processors of a computer."""

    name: str
    node: str
    """The computer whose cores its jobs use."""
    architecture: str
    """Such as ``A100``: demands are told apart by it."""
    memory: int
    """Bytes that jobs may use (D_nm)."""
    oversubscribe: int = WHOLE
    """Oversubscription ratio in permille (r_nm): 3000 lets jobs claim three times the device's compute.

    It scales compute alone (Section III, equation 2).
    """
    most: int = UNLIMITED
    """Jobs at once, at most."""


class Room:
    """Slots, compute, memory and cores that no job holds. Policies get a copy and take from it as they choose.

    Args:
        devices: in the cluster's order: node by node.
        cores: by node, thousandths of CPU cores; a node that is not named has as many as anyone asks for.

    >>> gpu = SharedDevice(name="gpu-0", node="a", architecture="A100", memory=80)
    >>> room = Room([gpu], {"a": 4000})
    >>> need = Demand(compute=600, memory=30, cores=1000)
    >>> room.take(need, 0)
    >>> room.fits(need, 0), room.compute, room.memory, room.cores
    (False, [400], [50], [3000])

    A job's slots count against the jobs that a device may have at once: one, or all of them for a job that is alone.
    """

    __slots__ = ("all_cores", "compute", "cores", "devices", "memory", "node_of", "slots")

    def __init__(self, devices: Sequence[SharedDevice], cores: Mapping[str, int] | None = None) -> None:
        nodes = list(dict.fromkeys(device.node for device in devices))
        self.devices = tuple(devices)
        self.node_of = [nodes.index(device.node) for device in devices]
        """By device: place of its node in :attr:`cores`."""
        self.compute = [device.oversubscribe for device in devices]
        """By device: permille of its compute, scaled by its oversubscription ratio."""
        self.memory = [device.memory for device in devices]
        self.slots = [device.most for device in devices]
        """By device: jobs that may begin beside those that run."""
        self.cores = [(cores or {}).get(node, UNLIMITED) for node in nodes]
        """By node; the devices of a node share them (equation 4)."""
        self.all_cores = tuple(self.cores)
        """By node: as many as there are, whatever was taken."""

    def copy(self) -> Room:
        other = Room.__new__(Room)
        other.devices, other.node_of = self.devices, self.node_of
        other.compute, other.memory, other.cores = self.compute[:], self.memory[:], self.cores[:]
        other.slots = self.slots[:]
        other.all_cores = self.all_cores
        return other

    def fits(self, need: Demand, place: int) -> bool:
        """True if the device at ``place`` has room for ``need``: constraints 1 to 3 of Algorithms 1 and 2; slots."""
        return (
            self.compute[place] >= need.compute
            and self.memory[place] >= need.memory
            and self.cores[self.node_of[place]] >= need.cores
            and self.slots[place] >= need.slots
        )

    def take(self, need: Demand, place: int) -> None:
        """A job with this need begins on the device at ``place``."""
        self.slots[place] -= need.slots
        self.compute[place] -= need.compute
        self.memory[place] -= need.memory
        self.cores[self.node_of[place]] -= need.cores

    def give_back(self, need: Demand, place: int) -> None:
        """A job with this need ended on the device at ``place``."""
        self.slots[place] += need.slots
        self.compute[place] += need.compute
        self.memory[place] += need.memory
        self.cores[self.node_of[place]] += need.cores


def why_nowhere(demand: Demands, empty: Room) -> str | None:
    """Why a job fits on no device even when nothing else runs; None where it fits.

    Args:
        demand: what the job needs.
        empty: the whole cluster, nothing placed.

    >>> gpu = SharedDevice(name="gpu-0", node="a", architecture="A100", memory=40_000_000_000)
    >>> why_nowhere({"A100": Demand(memory=60_000_000_000)}, Room([gpu]))
    'gpu-0 (A100): memory 60 GB of 40 GB'
    >>> why_nowhere({"H100": Demand()}, Room([gpu]))
    'gpu-0 (A100): no demand is known for A100'
    """
    reasons: dict[str, list[str]] = {}
    for place, device in enumerate(empty.devices):
        need = demand.get(device.architecture)
        if need is None:
            why = f"({device.architecture}): no demand is known for {device.architecture}"
        elif empty.fits(need, place):
            return None
        else:
            why = f"({device.architecture}): {', '.join(too_much(need, empty, place))}"
        reasons.setdefault(why, []).append(device.name)
    return "; ".join(f"{listed(names, 1)} {why}" for why, names in reasons.items()) or "there is no device"


def too_much(need: Demand, empty: Room, place: int) -> list[str]:
    cores = empty.cores[empty.node_of[place]]
    found = []
    if need.compute > empty.compute[place]:
        found.append(f"compute {need.compute / 10:g} % of {empty.compute[place] / 10:g} %")
    if need.memory > empty.memory[place]:
        has = max(empty.memory[place], 0)
        found.append(f"memory {memory_words(need.memory, beside=(has,))} of {memory_words(has, beside=(need.memory,))}")
    if need.cores > cores:
        found.append(f"cores {need.cores / WHOLE:g} of {cores / WHOLE:g}")
    return found
