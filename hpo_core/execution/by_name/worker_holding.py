"""WorkerHolding: which workers a study whose models hop holds in a pool: whole ones, with work for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hpo_core.execution.by_name.device_holding import DeviceHolding
from hpo_core.execution.by_name.worker_slots import whole
from hpo_core.model.devices.pool_limits import MOST_DEVICES
from hpo_core.model.devices.pool_member import Member
from hpo_core.placement.shares.device_choice import choose_devices
from hpo_core.placement.shares.members import Position, claim_of
from hpo_core.placement.shares.water_filling import divide


class WorkerHolding(DeviceHolding):
    """Chooses workers for a :class:`~hpo_core.execution.pool_seat.PoolSeat`, each with all of its slots.

    Of a worker that another study has a slot of, it takes none, and says that it wants them all.

    Args:
        kind: of the pool's devices, in words.
        patience: see :func:`~hpo_core.placement.shares.device_choice.choose_devices`.
    """

    def __init__(self, kind: str, *, patience: float) -> None:
        super().__init__(kind, patience=patience)
        self._workers: list[tuple[str, ...]] = []
        self._size = 1
        self._ending: frozenset[str] = frozenset()

    def note_workers(
        self,
        usable: Sequence[tuple[str, ...]],
        *,
        there: Iterable[tuple[str, ...]],
        used: Sequence[tuple[str, ...]],
        ending: Iterable[tuple[str, ...]] = (),
    ) -> None:
        """Before each look.

        Args:
            there: slots of each worker that is there, the study's partitions on it or not.
            usable: slots of each worker that has work for the study now, preferred ones first.
            used: slots of each worker where a unit runs, that of the youngest unit last.
            ending: those of them where the unit will end in a moment.
        """
        self._ending = frozenset(name for slots in ending for name in slots)
        self._workers = list(dict.fromkeys([*usable, *used]))
        self._size = max((len(slots) for slots in self._workers), default=1)
        self.note(
            there=[name for slots in there for name in slots],
            usable=[name for slots in usable for name in slots][:MOST_DEVICES],
            used=[name for slots in used for name in slots],
        )

    def settled(
        self, mine: Member, others: Sequence[Member], position: Position, now: float
    ) -> tuple[Member, Position]:
        taken = {name for other in others for name in other.devices}
        mine = msgspec.structs.replace(mine, devices=tuple(name for name in mine.devices if name not in taken))
        before = set(mine.devices)
        of_use = set(self._usable)
        offers = tuple(name for name in self._used if name in before & self._ending and name not in of_use)
        mine = msgspec.structs.replace(mine, offers=offers)
        wanted = self._wanted(mine, taken, missing=position.share - (len(mine.devices) - len(offers)))
        of_use = before.union(wanted)
        usable = [name for name in self._usable if name in of_use]
        choice = choose_devices(
            mine,
            others,
            shares=divide(position.capacity, [claim_of(member) for member in (mine, *others)]),
            usable=usable,
            used=self._used,
            closing=set(mine.devices).difference(self._open),
            capacity=position.capacity,
            patience=self._patience,
        )
        opened = whole(self._workers, choice.open)
        running = [name for name in self._used if name in before]
        kept = {*opened, *running}
        held = tuple(sorted(kept))
        self._open = tuple(opened)
        wants = tuple(name for name in wanted if name not in kept) if mine.demand > len(held) - len(offers) else ()
        lent = max(0, len(opened) - position.share)
        due = len(held) - min(lent, max(0, len(held) - position.share))
        return (
            msgspec.structs.replace(mine, devices=held, wants=wants, held=len(held)),
            msgspec.structs.replace(
                position,
                lent=lent,
                ideal=min(position.ideal, due + len(wants)),  # it waits for nothing where it wants nothing
                held=len(held),
                free=max(0, position.capacity - len(taken) - len(held)),
            ),
        )

    def _wanted(self, mine: Member, taken: set[str], *, missing: int) -> list[str]:
        """Slots of workers that it does not hold.

        Where workers have several slots, of so many workers alone as it is due: else a slot here and a slot there would
        be free, and never a whole worker. Those come first where others have the fewest slots.
        """
        has = {*mine.devices, *self._used}
        absent = [slots for slots in self._workers if not has.issuperset(slots)]
        if self._size > 1:
            absent.sort(key=lambda slots: len(taken.intersection(slots)))
            absent = absent[: max(1, -(-missing // self._size))]
        told = set(self._usable)  # no more than a row holds
        return [name for slots in absent for name in slots if name in told]
