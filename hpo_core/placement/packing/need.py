"""What a job needs of a device: compute, memory, cores and seconds, for each architecture it can run on.

HyperSack (Section III): a job p needs compute c_p, memory d_p and CPU cores q_p; how long it runs orders the jobs of
the decreasing policies. Whole numbers throughout, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

WHOLE = 1000
"""Compute of one device in permille, and one core in thousandths."""


class Need(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one job needs on one architecture.

    Raises:
        ValueError: a figure is negative, or ``seconds`` is not finite.
    """

    compute: int = 0
    """Permille of one device of this architecture, before oversubscription (c_p)."""
    memory: int = 0
    """Bytes of the device's memory at the peak (d_p)."""
    cores: int = 0
    """CPU cores of the node, in thousandths (q_p)."""
    seconds: float = 0.0
    """Expected run time."""

    def __post_init__(self) -> None:
        for name in ("compute", "memory", "cores", "seconds"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"need: {name} = {value!r} must be 0 or more and finite.")


Demand = Mapping[str, Need]
"""By architecture: what the job needs there. It cannot run on an architecture that is not named."""


class WaitingJob:
    """A job that waits for a device.

    Args:
        key: what the caller knows it by.
        demand: its need on each architecture.
    """

    __slots__ = ("demand", "key", "seconds")

    def __init__(self, key: object, demand: Demand) -> None:
        self.key = key
        self.demand: Demand = MappingProxyType(dict(demand))
        self.seconds = max((need.seconds for need in demand.values()), default=0.0)
        """Expected run time, on the architecture where it is longest."""

    def __repr__(self) -> str:
        return f"WaitingJob({self.key!r}, {dict(self.demand)!r})"
