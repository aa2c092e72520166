"""Studies that hold workers of one cluster by name, played in virtual time and judged by their journals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from hpo_core.execution.hopping.hopping_executor import HoppingExecutor
from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor, Worker
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.model.trial import Job
from hpo_core.placement.placer import Placer
from hpo_core.pool.executor import holds_all, join_pool
from hpo_core.pool.store import Pools
from hpo_core.study import Study
from tests.conftest import make_spec
from tests.sharing.in_memory import Controlled, drawn_losses, terms_for
from tests.virtual_units import VirtualUnits

STEP = 0.5
EPOCH = 6.0


class Span(NamedTuple):
    """A job or unit on a slot of a worker."""

    study: str
    worker: str
    began: float
    ended: float


class _Player(Controlled):
    """A study that uses workers by name."""

    running: VirtualExecutor

    @property
    def next_end(self) -> float:
        """When its next job or unit ends, as far as is known."""
        return min((each.end for each in self.running._attempts.values()), default=math.inf)

    def spans(self) -> Iterator[Span]:
        """What its journal says of where and when it trained."""
        for entry in self.study.journal.entries(self.name):
            for event in entry.events:
                if isinstance(event, JobCompleted | AttemptFailed):
                    if isinstance(event.visits, tuple):
                        for visit in event.visits:
                            yield Span(self.name, visit.worker, visit.started, visit.ended)
                    elif event.worker:
                        yield Span(self.name, event.worker, event.started, event.ended)

    def seconds(self, since: float, until: float) -> float:
        """Slot seconds in a time."""
        return sum(max(0.0, min(span.ended, until) - max(span.began, since)) for span in self.spans())


class _SizedWorkers(VirtualUnits):
    """Workers of several slots, which run one unit at a time."""

    def __init__(self, threads: Mapping[str, int], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._devices = [msgspec.structs.replace(device, slots=threads.get(device.name, 1)) for device in self._devices]


class Hopper(_Player):
    """A study whose models hop.

    Args:
        holdings: by worker: places of the partitions that lie there.
        epoch: seconds of a trial's epoch.
    """

    def __init__(
        self,
        name: str,
        pools: Pools,
        holdings: Mapping[str, Sequence[int]],
        *,
        search: dict[str, Any] | None = None,
        epoch: Callable[[Job], float] = lambda job: EPOCH,
        begins: float = 0.0,
        data: dict[str, Any] | None = None,
        threads: Mapping[str, int] | None = None,
        others_see: Sequence[Worker] = (),
        **terms: Any,
    ) -> None:
        self.begins, self.clock = begins, VirtualClock(begins)
        count = 1 + max(place for places in holdings.values() for place in places)
        self.names = [f"part-{place}" for place in range(count)]
        self.holdings = holdings
        spec = make_spec(
            study=name,
            objective="lab:train",
            search=search or {"method": "random", "configs": 8, "max_resource": 2},
            data={"partitions": [{"name": each, "count": 1} for each in self.names], **(data or {})},
            # with a stop rule models train a few at a time: what ran is read from the journal, which knows of units
            # once their job has ended
            stop={"total_resource": 1_000_000},
            cluster={"kind": "address", "address": "tcp://10.0.0.5:8786"},
            share={"weight": terms.get("weight", 1.0)},
        )
        self.study = Study.create(spec, MemoryJournal(), clock=self.clock)
        objectives = [spec.objectives[0].name]
        self.units = _SizedWorkers(
            threads or {},
            self.clock,
            workers=others_see or tuple(Worker() for _ in holdings),
            train=drawn_losses(objectives),
            seconds=epoch,
            objectives=objectives,
            sizes=[1.0] * count,
            trained_on=count,
            holdings={worker: [self.names[place] for place in places] for worker, places in holdings.items()},
            state=100,
        )
        self.running = self.units
        given = terms_for(name, unit="worker", **terms)
        self.pooled = join_pool(
            self.units, self.study, Placer(), pools=pools, terms=given, threads=dict, usable=holds_all(spec)
        )
        self.seat = self.pooled.seat
        self.executor = HoppingExecutor(self.pooled, spec, None)
        self.loop = Loop(self.study, self.executor)

    def goes_on(self, now: float) -> None:
        """Its controller was stopped until now, and hears only now of the units that ended meanwhile."""
        self.clock.now = now
        for attempt in self.units._attempts.values():
            if attempt.end < now:
                self.units._end_at(attempt, now)

    def judge(self) -> None:
        """Each model saw each partition once in each epoch, where it lies, one at a time."""
        of_trial: dict[int, list[tuple[float, float]]] = defaultdict(list)
        epochs: dict[tuple[int, int], list[int]] = defaultdict(list)
        for entry in self.study.journal.entries(self.name):
            for event in entry.events:
                if isinstance(event, JobCompleted):
                    assert isinstance(event.visits, tuple)
                    for visit in event.visits:
                        assert visit.partition in self.holdings[visit.worker]
                        epochs[event.trial, visit.epoch].append(visit.partition)
                        of_trial[event.trial].append((visit.started, visit.ended))
        for seen in epochs.values():
            assert sorted(seen) == list(range(len(self.names)))
        for spans in of_trial.values():
            for (_, ended), (began, _) in pairwise(sorted(spans)):
                assert ended <= began + 1e-9


class _NamedWorkers(VirtualExecutor):
    """Workers of several slots each; jobs name their worker."""

    def __init__(self, threads: Mapping[str, int], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.threads = threads

    def inventory(self) -> Inventory:
        return Inventory.of(sum(self.threads.values()), "dask")


class Plain(_Player):
    """A study whose jobs take one slot each."""

    def __init__(
        self,
        name: str,
        pools: Pools,
        threads: Mapping[str, int],
        *,
        seconds: Callable[[Job], float],
        search: dict[str, Any] | None = None,
        begins: float = 0.0,
        gang: int = 1,
        **terms: Any,
    ) -> None:
        self.begins, self.clock = begins, VirtualClock(begins)
        changes: dict[str, Any] = {"search": search or {"method": "random", "configs": 100_000, "max_resource": 1}}
        if gang > 1:
            changes |= {"training": {"gang": gang}, "cluster": {"kind": "local", "workers": sum(threads.values())}}
        spec = make_spec(study=name, **changes)
        self.study = Study.create(spec, MemoryJournal(), clock=self.clock)
        objectives = [each.name for each in spec.objectives]
        self.running = _NamedWorkers(
            threads,
            self.clock,
            workers=len(threads),
            train=drawn_losses(objectives),
            seconds=seconds,
            objectives=objectives,
        )
        self.executor = join_pool(
            self.running, self.study, Placer(), pools=pools, terms=terms_for(name, unit="worker", **terms),
            threads=lambda: threads,
        )  # fmt: skip
        self.seat = self.executor.seat
        self.loop = Loop(self.study, self.executor)


class PlayedCluster:
    """Plays all studies; reads nothing but their journals when it judges.

    Args:
        threads: by worker: its slots.
    """

    def __init__(self, threads: Mapping[str, int], *players: _Player) -> None:
        self.threads = threads
        self.players = list(players)
        self.now = 0.0

    def play(self, until: float) -> None:
        """Until that moment, or until all have ended."""
        while self.now < until and not all(player.ended for player in self.players):
            self.now = self._next_moment(self.now + STEP)
            for player in self.players:
                player.run(self.now)
            for player in self.players:
                if player.seat.is_due(self.now, player.seat._seen):
                    player.run(self.now)  # a look that is due at this moment is none of the next one
            held = [name for player in self.players if not player.stopped and self.now > player.begins
                    and not player.ended for name in player.seat.held]  # fmt: skip
            assert len(held) == len(set(held)), f"a slot is held twice at {self.now}"

    def _next_moment(self, until: float) -> float:
        """No player gets ahead of what another one does in between: it would see what has not happened yet."""
        ends = [player.next_end for player in self.players if not (player.stopped or player.ended)]
        return min([until, *(end for end in ends if end > self.now)])

    def judge(self) -> None:
        """No more at once on a worker than it has slots, and nobody beside a unit."""
        hopping = {player.name for player in self.players if isinstance(player, Hopper)}
        for player in self.players:
            if isinstance(player, Hopper):
                player.judge()
        by_worker: dict[str, list[Span]] = defaultdict(list)
        for player in self.players:
            for span in player.spans():
                by_worker[span.worker].append(span)
        for worker, spans in by_worker.items():
            for moment in [span.began for span in spans]:
                there = [span for span in spans if span.began <= moment < span.ended - 1e-3]  # they are recorded so
                most = 1 if any(span.study in hopping for span in there) else self.threads[worker]
                assert len(there) <= most, f"{there} run on {worker} at {moment}"


def one_slot_each(workers: Iterable[str]) -> dict[str, int]:
    return dict.fromkeys(workers, 1)
