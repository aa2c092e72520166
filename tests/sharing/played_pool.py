"""Several studies of one process on one pool: each has its own loop and clock, and all reach the same moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.trial import Job
from hpo_core.pool.executor import PooledExecutor, SlotPlaces
from hpo_core.pool.seat import PoolSeat
from hpo_core.pool.store import Pools
from hpo_core.study import Study
from tests.conftest import make_spec
from tests.sharing.in_memory import Controlled, drawn_losses, terms_for, used

SLOTS = 8
STEP = 0.5


class Player(Controlled):
    """One study with its controller."""

    def __init__(
        self,
        name: str,
        pools: Pools,
        *,
        seconds: Callable[[Job], float],
        slots: int = SLOTS,
        search: dict[str, Any] | None = None,
        begins: float = 0.0,
        gang: int | Literal["auto"] | None = None,
        **terms: Any,
    ) -> None:
        self.begins, self.clock = begins, VirtualClock(begins)
        changes: dict[str, Any] = {"share": {"pool": "p", "weight": terms.get("weight", 1.0)}}
        changes |= {"search": search} if search is not None else {}
        if gang is not None:
            changes |= {"training": {"gang": gang}, "cluster": {"kind": "local", "workers": slots}}
            changes |= {"scaling": {"speedups": {2: 2.0, 4: 4.0}}} if gang == "auto" else {}
        spec = make_spec(study=name, **changes)
        self.study = Study.create(spec, MemoryJournal(), clock=self.clock)
        objectives = [metric.name for metric in spec.objectives]
        train = drawn_losses(objectives)
        inner = VirtualExecutor(self.clock, workers=slots, train=train, seconds=seconds, objectives=objectives)
        places = SlotPlaces(self.study)
        self.seat = PoolSeat(pools, terms_for(name, **terms), places)
        self.executor = PooledExecutor(inner, self.seat, places)
        self.loop = Loop(self.study, self.executor)
        self.used_seconds = 0.0

    @property
    def used(self) -> int:
        return used(self.executor)


class PlayedPool:
    """Plays all studies, and judges what they do after each step of time."""

    def __init__(self, *players: Player, slots: int = SLOTS) -> None:
        self.players = list(players)
        self.slots = slots
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
            assert used <= self.slots, f"{used} slots are used at {self.now}"
            held = sum(len(player.seat.held) for player in active if not player.stopped)
            assert held <= self.slots, f"{held} slots are held at {self.now}"
        for player in active:
            waiting = [each.job.demand.slots for each in [*player.executor._waiting.values()][:1]]
            room = len(player.seat.open(player.clock.now)) - player.used
            assert player.stopped or not waiting or waiting[0] > room, (
                f"{player.name} has a slot at {self.now} that it is due, and a job waits"
            )
            player.used_seconds += STEP * player.used
        wanted = any(not p.stopped and p.study.demand(self.slots) > p.used for p in active)
        self.idle_for = self.idle_for + STEP if wanted and used < self.slots else 0.0
        self.longest_idle = max(self.longest_idle, self.idle_for)
