"""PooledSlots: an executor whose jobs run on slots of workers that its study holds by name in a pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from hpo_core.execution.by_name.device_holding import DeviceHolding
from hpo_core.execution.by_name.worker_slots import all_slots, nearest_first, slot_name, worker_of
from hpo_core.execution.executor import Executor
from hpo_core.execution.pool_seat import PoolSeat
from hpo_core.execution.pooled_executor import PooledExecutor, Submitted
from hpo_core.model.devices.inventory import Slot
from hpo_core.placement.shares.members import Position, longest_asking


class PooledSlots(PooledExecutor):
    """Runs jobs on another executor, each on slots of workers that nobody else uses.

    The study's slots are counted as ever. Which worker a job runs on is chosen when it starts: its slot is then named
    after the worker.

    Args:
        inner: runs the jobs on the workers that their slots name; its clock tells the time.
        seat: of the study in its pool, which holds devices.
        threads: by name of a worker that is there: its slots.
    """

    def __init__(self, inner: Executor, seat: PoolSeat, threads: Callable[[], Mapping[str, int]]) -> None:
        super().__init__(inner, seat)
        assert seat.devices is not None
        self._holding: DeviceHolding = seat.devices
        self._threads = threads

    def _allowed(self) -> int:
        """Slots that jobs use, and those on which one may begin."""
        if not self.seat.is_fresh(self.now()):
            return 0
        with self._lock:
            used = {name for each in self._running.values() for name in _slots_of(each)}
        return len(used.union(self._startable()))

    def _startable(self) -> set[str]:
        return set(self._holding.open_of(self.seat.mine, self.now())) - self._holding.instead

    def _exchange(self) -> None:
        threads = self._threads()
        self._seen = sum(threads.values())
        if not self.seat.is_due(self.now(), self._seen):
            return
        slots = all_slots(threads)
        with self._lock:
            used = [name for each in self._running.values() for name in _slots_of(each)]
        self._holding.note(there=slots, usable=nearest_first(slots, self.seat.mine.devices), used=used)
        super()._exchange()

    def _start_waiting(self) -> None:
        if not self.seat.is_fresh(self.now()):
            return  # until the pool can be read again
        with self._lock:
            if not self._waiting:
                return
            used = {name for each in self._running.values() for name in _slots_of(each)}
            free = deque(nearest_first(self._startable() - used, used))
            ready: list[Submitted] = []
            while self._waiting and (needed := self._waiting[0].job.demand.slots) <= len(free):
                each = self._waiting.pop(0)
                ready.append(each._replace(slot=_named(each.slot, [free.popleft() for _ in range(needed)])))
                self._running[each.job.key] = ready[-1]
        for number, each in enumerate(ready):
            try:
                self._start(each)
            except BaseException:  # nobody would report the others
                with self._lock:
                    for left in ready[number + 1 :]:
                        self._running.pop(left.job.key, None)
                raise

    def _ended(self, each: Submitted) -> None:
        if not self._startable().issuperset(_slots_of(each)):
            self.seat.look_soon()

    def _preemption(self, position: Position) -> tuple[str | None, list[tuple[int, int]]]:
        """The youngest attempt on a slot that is to be given back, where another study has waited long enough."""
        longest = longest_asking(self.seat.mine, self.seat.others, position)
        if longest is None:
            return None, []
        closing = set(self.seat.mine.devices).difference(self._holding.open_of(self.seat.mine, self.now()))
        for key, each in reversed(self._running.items()):
            if key[0] not in self._spared and not closing.isdisjoint(_slots_of(each)):
                return longest, [key]
        return None, []


def _slots_of(each: Submitted) -> list[str]:
    return [slot_name(slot.name, slot.number) for slot in each.slot.ranks]


def _named(slot: Slot, names: list[str]) -> Slot:
    """The same place of the inventory, on these slots of workers."""
    ranks = [Slot(slot.device, int(name.rpartition("#")[2]), worker_of(name), slot.portion) for name in names]
    return ranks[0]._replace(others=tuple(ranks[1:]))
