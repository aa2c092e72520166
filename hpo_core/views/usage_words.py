"""What an attempt used of its machine, in words."""

from __future__ import annotations

from collections.abc import Iterable

from hpo_core.model.devices.memory_words import memory_words
from hpo_core.model.devices.usage import Usage, UsageField
from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.views.formatting import duration


def usage_of(event: JobCompleted | AttemptFailed) -> Usage | None:
    """None where nothing was measured."""
    return event.usage if isinstance(event.usage, Usage) else None


def usage_words(usage: UsageField | None, *, hops: bool = False) -> str:
    """All that is known; empty where nothing is.

    Args:
        hops: whether models hop: the resource counts epochs, and a unit is a pass over one partition.

    >>> usage_words(Usage(memory=212_400_000, cores=1.84, startup_seconds=0.61, unit_seconds=0.3))
    '212 MB, 1.84 cores, start-up 0.61 s, 0.3 s a unit'
    >>> usage_words(Usage(memory=212_400_000, unit_seconds=0.3), hops=True)
    '212 MB, 0.3 s an epoch'
    >>> usage_words(Usage(memory=10**9, device="GPU-5d", architecture="A100", device_memory=6 * 10**9, compute=0.28))
    '1 GB; of GPU-5d (A100) 6 GB, 28 % of its compute'
    >>> usage_words(Usage(memory=10**8, device="cpu:node-1", architecture="CPU", share=(250, 2 * 10**8, 500)))
    '100 MB; given 25 %, 200 MB, 0.5 cores of cpu:node-1 (CPU)'
    """
    if not isinstance(usage, Usage):
        return ""
    parts = [
        memory_words(usage.memory) if usage.memory else "",
        f"{usage.cores:.3g} core{'' if usage.cores == 1 else 's'}" if usage.cores else "",
        f"start-up {duration(usage.startup_seconds)}" if usage.startup_seconds else "",
        f"{duration(usage.unit_seconds)} {'an epoch' if hops else 'a unit'}" if usage.unit_seconds else "",
    ]
    of_device = [
        memory_words(usage.device_memory) if usage.device_memory is not None else "",
        f"{usage.compute:.0%} of its compute".replace("%", " %") if usage.compute is not None else "",
    ]
    name = f"{usage.device} ({usage.architecture})" if usage.architecture else usage.device or "its GPU"
    groups = [", ".join(filter(None, parts)), ", ".join(filter(None, of_device)), ""]
    if groups[1]:
        groups[1] = f"of {name} {groups[1]}"
    if usage.share is not None:
        compute, memory, cores = usage.share
        groups[2] = f"given {compute / 10:.3g} %, {memory_words(memory)}, {cores / 1000:.3g} cores of {name}"
    return "; ".join(filter(None, groups))


def largest_memory(usages: Iterable[Usage | None]) -> int | None:
    """Peak memory of several attempts in bytes; None where none was measured."""
    return max((usage.memory for usage in usages if usage is not None), default=None)
