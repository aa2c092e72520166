"""Slots of workers by name: what studies hold that share one cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

KIND = "worker slot"
"""What they are called in words. A pool at a scheduler's address is of this kind."""
PATIENCE_SECONDS = 5.0
"""A study that is due a worker, and wants one that a study within its share has, waits so long before that gives it."""


def slot_name(worker: str, number: int) -> str:
    """What all studies of a pool know one slot of a worker by."""
    return f"{worker}#{number}"


def slots_of(worker: str, threads: int) -> tuple[str, ...]:
    """All slots of a worker.

    >>> slots_of("tcp://10.0.0.1:4000", 2)
    ('tcp://10.0.0.1:4000#0', 'tcp://10.0.0.1:4000#1')
    """
    return tuple(slot_name(worker, number) for number in range(threads))


def all_slots(threads: Mapping[str, int]) -> list[str]:
    """Of all workers, by their threads."""
    return [name for worker in sorted(threads) for name in slots_of(worker, threads[worker])]


def worker_of(slot: str) -> str:
    """The worker that a slot belongs to.

    >>> worker_of(slot_name("worker-3", 1))
    'worker-3'
    """
    return slot.rpartition("#")[0]


def nearest_first(free: Iterable[str], held: Iterable[str]) -> list[str]:
    """Slots in the order in which a study takes them: those of workers where it holds most already come first."""
    count: dict[str, int] = {}
    for name in held:
        count[worker_of(name)] = count.get(worker_of(name), 0) + 1
    return sorted(free, key=lambda name: (-count.get(worker_of(name), 0), name))


def whole(workers: Iterable[Sequence[str]], names: Iterable[str]) -> list[str]:
    """Those of the slots ``names`` whose worker's slots are all among them, worker by worker."""
    there = set(names)
    return [name for slots in workers if there.issuperset(slots) for name in slots]
