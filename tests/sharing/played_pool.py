"""Several studies of one process on one pool: each has its own loop and clock, and all reach the same moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job
from hpo_core.pool.executor import PooledExecutor, SlotPlaces
from hpo_core.pool.seat import PoolSeat
from hpo_core.pool.store import Pools
from hpo_core.study import Study
from tests.conftest import make_spec
from tests.sharing.in_memory import terms_for, used

SLOTS = 8
STEP = 0.5


class Player:
    stopped = False

    def __init__(
        self,
        name: str,
        pools: Pools,
        *,
        seconds: Callable[[Job], float],
        search: dict[str, Any] | None = None,
        begins: float = 0.0,
        gang: int | Literal["auto"] | None = None,
        **terms: Any,
    ) -> None:
        self.begins, self.clock = begins, VirtualClock(begins)
        changes: dict[str, Any] = {"share": {"pool": "p", "weight": terms.get("weight", 1.0)}}
        changes |= {"search": search} if search is not None else {}
        if gang is not None:
            changes |= {"training": {"gang": gang}, "cluster": {"kind": "local", "workers": SLOTS}}
            changes |= {"scaling": {"speedups": {2: 2.0, 4: 4.0}}} if gang == "auto" else {}
        spec = make_spec(study=name, **changes)
        self.study = Study.create(spec, MemoryJournal(), clock=self.clock)
        objectives = [metric.name for metric in spec.objectives]

        def train(job: Job) -> dict[str, float]:
            return {metric: Stream(job.trial, "loss", job.target).uniform() for metric in objectives}

        inner = VirtualExecutor(self.clock, workers=SLOTS, train=train, seconds=seconds, objectives=objectives)
        places = SlotPlaces(self.study)
        self.seat = PoolSeat(pools, terms_for(name, **terms), places)
        self.executor = PooledExecutor(inner, self.seat, places)
        self.loop = Loop(self.study, self.executor)
        self.used_seconds = 0.0

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def ended(self) -> bool:
        return not self.study.state.running and self.study.at_rest

    @property
    def used(self) -> int:
        return used(self.executor)

    def run(self, until: float) -> None:
        """What its controller does until that moment, unless it is stopped or has ended."""
        if self.stopped or until <= self.begins or self.ended:
            return
        self.loop.run(until=until)
        if self.ended:
            self.seat.leave()


class PlayedPool:
    """Plays all studies, and judges what they do after each step of time."""

    def __init__(self, *players: Player) -> None:
        self.players = list(players)
        self.now = 0.0
        self.idle_for = 0.0
        """Seconds for which a slot has been free that a study waited for."""
        self.longest_idle = 0.0

    def play(self, until: float, *, judged: bool = True) -> None:
        while self.now < until:
            self.now += STEP
            for player in self.players:
                player.run(self.now)
            self._judge(judged)

    def _judge(self, judged: bool) -> None:
        active = [player for player in self.players if self.now > player.begins and not player.ended]
        used = sum(player.used for player in active)
        if judged:
            assert used <= SLOTS, f"{used} slots are used at {self.now}"
            held = sum(len(player.seat.held) for player in active if not player.stopped)
            assert held <= SLOTS, f"{held} slots are held at {self.now}"
        for player in active:
            waiting = [each.job.demand.slots for each in [*player.executor._waiting.values()][:1]]
            room = len(player.seat.open(player.clock.now)) - player.used
            assert player.stopped or not waiting or waiting[0] > room, (
                f"{player.name} has a slot at {self.now} that it is due, and a job waits"
            )
            player.used_seconds += STEP * player.used
        wanted = any(not p.stopped and p.study.demand(SLOTS) > p.used for p in active)
        self.idle_for = self.idle_for + STEP if wanted and used < SLOTS else 0.0
        self.longest_idle = max(self.longest_idle, self.idle_for)
