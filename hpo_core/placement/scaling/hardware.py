"""A processor and the network between processors: seconds for work and for bytes."""

from __future__ import annotations

import msgspec

from hpo_core.placement.scaling.layers import Work

_GIB = 2**30


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or CPU, by its data sheet.

    >>> K80.seconds(Work(5.6e12, ()))
    1.0
    """

    clock_mhz: float
    peak_gflops: float
    memory_gb: float
    """Bandwidth of its memory in 2^30 bytes a second."""
    reached: float = 1.0
    """The part of peak and bandwidth that software reaches (Paleo: platform percent of peak)."""

    def seconds(self, work: Work) -> float:
        """Arithmetic and memory traffic, one after the other; each at least one tick of the clock."""
        tick = 1e-6 / self.clock_mhz
        arithmetic = max(tick, work.flops / (self.peak_gflops * 1e9 * self.reached)) if work.flops else 0.0
        return arithmetic + sum(
            max(tick, transfer / _GIB / self.memory_gb / self.reached) for transfer in work.transfers
        )


class Link(msgspec.Struct, frozen=True):
    """The network of each processor."""

    gbps: float
    """Gigabits (10^9) a second."""
    reached: float = 1.0
    """The part of it that software reaches."""

    def seconds(self, transfer: float) -> float:
        """For so many bytes."""
        return transfer * 8e-9 / self.gbps / self.reached


K20X = Processor(clock_mhz=1000, peak_gflops=3935, memory_gb=250)
K40 = Processor(clock_mhz=745, peak_gflops=4290, memory_gb=288)
K80 = Processor(clock_mhz=560, peak_gflops=5600, memory_gb=480)
TITAN_X = Processor(clock_mhz=1000, peak_gflops=6144, memory_gb=336.5)
"""Figures of Paleo (TalwalkarLab/paleo, ``paleo/device.py``)."""

ETHERNET_20 = Link(20)
INFINIBAND = Link(70)
"""As above."""
