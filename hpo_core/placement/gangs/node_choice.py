"""Which free slots a gang gets: those of one device, else of as few devices as can be."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.model.devices.inventory import Slot


def gang_slots(free: Sequence[Slot], count: int) -> Slot:
    """The slots of a gang, rank 0 first.

    A device with just enough free slots is taken before one with more, so that large gaps stay for large gangs. Where
    none has enough, those with most free slots are taken first.

    Args:
        free: free slots in order; at least ``count``.

    >>> free = [Slot(0, 0, "a"), Slot(0, 1, "a"), Slot(1, 2, "b"), Slot(2, 0, "c"), Slot(2, 1, "c"), Slot(2, 2, "c")]
    >>> [slot.name for slot in gang_slots(free, 2).ranks], [slot.name for slot in gang_slots(free, 4).ranks]
    (['a', 'a'], ['c', 'c', 'c', 'a'])
    """
    by_device: dict[int, list[Slot]] = {}
    for slot in free:
        by_device.setdefault(slot.device, []).append(slot)
    devices = list(by_device.values())
    enough = [slots for slots in devices if len(slots) >= count]
    if enough:
        chosen = min(enough, key=len)[:count]
    else:
        devices.sort(key=len, reverse=True)
        chosen = [slot for slots in devices for slot in slots][:count]
    return chosen[0]._replace(others=tuple(chosen[1:]))
