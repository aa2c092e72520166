"""Packed studies that share devices, on virtual clocks: real studies, placements, policies and loops.

What they did is judged from their journals, by what each says of where its jobs ran and until when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpo_core.execution.loop import Loop
from hpo_core.execution.placing import PlacementWriter, shared_devices_of
from hpo_core.execution.virtual import VirtualClock
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.devices.inventory import Capacity, Device
from hpo_core.model.events import AttemptFailed, JobCompleted, JobPlaced
from hpo_core.model.trial import Job
from hpo_core.pool.executor import join_pool
from hpo_core.pool.store import Pools
from hpo_core.replay.audit import audit
from hpo_core.study import Study
from tests.conftest import make_spec
from tests.sharing.in_memory import Controlled, drawn_losses, terms_for
from tests.virtual_devices import Load, VirtualDevices

GB = 10**9
STEP = 0.5


def gpus(count: int, first: int = 0) -> list[Device]:
    """GPUs of one computer, each with room for 16 jobs."""
    capacity = Capacity(node="n", architecture="A100", memory=80 * GB, free=80 * GB, cores=64_000, gpu=True)
    return [Device(f"gpu-{number}", 16, capacity) for number in range(first, first + count)]


class PackedPlayer(Controlled):
    """One packed study with its controller."""

    def __init__(
        self,
        name: str,
        pools: Pools,
        *,
        seconds: Callable[[Job], float],
        devices: Sequence[Device],
        search: dict[str, Any],
        each: int = 250,
        begins: float = 0.0,
        **terms: Any,
    ) -> None:
        self.begins, self.clock = begins, VirtualClock(begins)
        demand = {"compute": each // 10, "memory": 80 * GB * each // 1000, "cores": 1}
        share = {"pool": "p", "weight": terms.get("weight", 1.0)}
        spec = make_spec(study=name, search=search, packing={"demand": demand}, share=share)
        self.journal = MemoryJournal()
        self.study = Study.create(spec, self.journal, clock=self.clock)
        objectives = [metric.name for metric in spec.objectives]
        inner = VirtualDevices(
            self.clock,
            devices=devices,
            load=lambda job, slot: Load(seconds(job), each),
            train=drawn_losses(objectives),
            poll_seconds=1.0,
            objectives=objectives,
        )
        placer = shared_devices_of(self.study)
        self.executor = join_pool(
            inner, self.study, placer, pools=pools, terms=terms_for(name, unit="device", **terms), threads=dict
        )
        self.seat = self.executor.seat
        self.loop = Loop(self.study, self.executor, placer=placer, observers=[PlacementWriter(self.study, placer)])
        self.died = float("inf")

    def goes_on_until(self, until: float) -> None:
        while self.clock.now < until and not self.ended:
            self.loop.run(until=until)
            if not self.ended:
                self.clock.now = max(self.clock.now, min(until, self.clock.now + STEP))

    def spans(self) -> list[tuple[str, float, float]]:
        """(device, begin, end) of each attempt, as the journal says; one that runs ends when its controller died."""
        placed: dict[tuple[int, int], JobPlaced] = {}
        found = []
        for entry in self.journal.entries(self.name):
            for event in entry.events:
                if isinstance(event, JobPlaced):
                    placed[event.trial, event.attempt] = event
                elif isinstance(event, JobCompleted | AttemptFailed):
                    one = placed.pop((event.trial, event.attempt), None)
                    if one is not None:
                        found.append((one.device, one.began, event.ended))
        return [*found, *((one.device, one.began, self.died) for one in placed.values())]


class PlayedDevices:
    """Plays all studies; after each step no two of them have jobs on one device."""

    def __init__(self, *players: PackedPlayer) -> None:
        self.players = list(players)
        self.everybody = list(players)
        self.now = 0.0

    def join(self, player: PackedPlayer) -> None:
        self.players.append(player)
        self.everybody.append(player)

    def kill(self, player: PackedPlayer) -> None:
        """Its controller and its jobs end."""
        player.died = self.now
        self.players.remove(player)

    def play(self, until: float) -> None:
        while self.now < until:
            self.now += STEP
            for player in self.players:
                player.run(self.now)
            active = [player for player in self.players if self.now > player.begins and not player.ended]
            held = [name for player in active for name in player.seat.held]
            assert len(held) == len(set(held)), f"{held} at {self.now}"

    def check(self) -> None:
        """By the journals: at any time one study has jobs on a device, and each study's decisions hold.

        Of two that are played one after the other to the same moment the second one may see what the first one did up
        to a step later.
        """
        spans: dict[str, list[tuple[float, float, str]]] = {}
        for player in self.everybody:
            assert audit(player.journal.entries(player.name)).clean
            for device, begin, end in player.spans():
                spans.setdefault(device, []).append((begin, end, player.name))
        assert spans, "jobs were placed"
        for device, here in spans.items():
            for begin, end, name in here:
                for other_begin, other_end, other in here:
                    if name != other:
                        assert end <= other_begin + STEP or other_end <= begin + STEP, (
                            device,
                            name,
                            begin,
                            end,
                            other,
                            other_begin,
                        )
