"""The laws of packing, judged by what a study's journal says of its placements, whatever happened meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import AttemptFailed, JobCompleted, JobPlaced, TrialAbandoned
from hpo_core.model.trial import JobKey, Outcome, Report
from hpo_core.packing.policies import POLICIES
from hpo_core.replay.audit import audit
from hpo_core.study import Study
from tests.conftest import make_spec
from tests.placement.test_shared_devices import GB, PlayedMeter, devices_for, gpu

PLACES = {"a": ("n1", "A100"), "b": ("n1", "H100"), "c": ("n2", "A100")}
"""(node, architecture) of each device."""
CORES = 16_000
"""Of each node, as :func:`gpu` says."""


class There(NamedTuple):
    """What the history says of a device."""

    free: int
    """Bytes."""
    node: str
    ratio: float


class PackedStudy:
    """A random search on devices that come, go, fill up and change their ratio; what it knew at each entry is kept."""

    def __init__(self, policy: str, most: int) -> None:
        packing = {"policy": policy, "most": most}
        spec = make_spec(
            study="laws",
            space={"width": {"type": "ordinal", "choices": [1, 2, 3, 4, 5, 6]}},
            search={"method": "random", "configs": 60, "max_resource": 3},
            packing=packing,
            training={"retries": {"out_of_memory": 2}},
        )
        self.study = Study.create(spec, MemoryJournal())
        self.meter = PlayedMeter()
        self.placer = devices_for(packing=packing, meter=self.meter)
        self.running: list[JobKey] = []
        self.slots: dict[JobKey, tuple[str, int]] = {}
        self.ratios: dict[str, float] = {}
        self.placer.estimates.ratios.ratios = lambda: dict(self.ratios)  # type: ignore[method-assign]
        self.history: dict[int, dict[str, There]] = {}
        """By entry: the devices at that time."""
        self.measured: set[JobKey] = set()
        """Measured while they ran: of their shares the journal says the memory anew, and not that they compute less."""
        self.now = 0.0

    def update(self, free: Mapping[str, int], ratios: Mapping[str, float]) -> None:
        """Devices with so many free gigabytes are there, and these ratios hold by architecture."""
        self.ratios = dict(ratios)
        inventory = Inventory(
            tuple(
                gpu(name, memory=40, free=amount, node=PLACES[name][0], kind=PLACES[name][1])
                for name, amount in free.items()
            )
        )
        for key in self.placer.update(inventory):
            self.end(key, Outcome.LOST, None)
        self.there = {
            name: There(amount * GB, PLACES[name][0], ratios.get(PLACES[name][1], 1.0)) for name, amount in free.items()
        }
        self.place()

    def place(self) -> None:
        self.study.set_capacity(self.placer.capacity())
        waiting = [job for job in self.study.state.wanted() if job.key not in self.running]
        placed = self.placer.place(waiting, now=self.now)
        self.running += [job.key for job, _ in placed.begun]
        self.slots |= {job.key: (slot.name, slot.number) for job, slot in placed.begun}
        assert len({self.slots[key] for key in self.running}) == len(self.running), "each its own place"
        if placements := self.placer.new_placements():
            self.study.note_placements(placements)
            self.history[self.study.seq - 1] = self.there
        for report in placed.refused:
            self.study.tell_report(report)

    def end(self, key: JobKey, outcome: Outcome, usage: Usage | None) -> None:
        self.now += 10.0
        self.running.remove(key)
        self.meter.seen.pop(key, None)
        metrics = {"loss": 1.0} if outcome is Outcome.COMPLETED else {}
        told = Report(
            trial=key[0], attempt=key[1], outcome=outcome, metrics=metrics, started=self.now - 9, ended=self.now,
            **({} if usage is None else {"usage": usage}),
        )  # fmt: skip
        report = self.placer.judge(told)
        self.study.tell_report(report)
        self.placer.release(key)

    def judge(self, most: int) -> int:
        """Equations 1 to 4 of HyperSack, the jobs of a device, and who is alone, at each entry with a new placement."""
        held: dict[JobKey, JobPlaced] = {}
        alone: set[int] = set()
        begun = 0
        for entry in self.study.journal.entries("laws"):
            new: set[str] = set()
            for event in entry.events:
                match event:
                    case JobPlaced():
                        if (before := held.get((event.trial, event.attempt))) is None:
                            new.add(event.device)
                        else:
                            assert before.device == event.device, "one device (1)"
                        held[event.trial, event.attempt] = event
                    case AttemptFailed():
                        held.pop((event.trial, event.attempt), None)
                        if event.outcome is Outcome.OUT_OF_MEMORY:
                            alone.add(event.trial)
                    case JobCompleted():
                        held.pop((event.trial, event.attempt), None)
                        alone.discard(event.trial)
                    case TrialAbandoned():
                        alone.discard(event.trial)
            assert len({trial for trial, _ in held}) == len(held), "one job of a trial at once"
            for name in new:
                there = self.history[entry.seq]
                jobs = [one for one in held.values() if one.device == name]
                assert len(jobs) <= most
                assert len(jobs) == 1 or not alone & {one.trial for one in jobs}
                assert (
                    sum(one.share[0] for one in jobs if (one.trial, one.attempt) not in self.measured)
                    <= 1000 * there[name].ratio
                ), "(2)"
                assert sum(one.share[1] for one in jobs) <= there[name].free, "(3)"
                node = [
                    one for one in held.values() if one.device in there and there[one.device].node == there[name].node
                ]
                assert sum(one.share[2] for one in node if (one.trial, one.attempt) not in self.measured) <= CORES, (
                    "(4)"
                )
                begun += 1
        assert audit(list(self.study.journal.entries("laws"))).clean
        self.study.check()
        return begun


ENDS = [Outcome.COMPLETED] * 3 + [Outcome.OUT_OF_MEMORY]
kinds = st.sampled_from(["A100", "H100"])
usages = st.builds(
    Usage,
    device_memory=st.integers(1, 20).map(lambda size: size * GB),
    compute=st.sampled_from([0.01, 0.1, 0.3, 0.45, 0.9]),
    cores=st.sampled_from([0.1, 1.0, 5.0]),
    unit_seconds=st.just(1.0),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("end"), st.integers(0, 30), st.sampled_from(ENDS), usages),
        st.tuples(st.just("end"), st.integers(0, 30), st.just(Outcome.CRASHED), st.none()),
        st.tuples(st.just("measured"), st.integers(0, 30), usages),
        st.tuples(st.just("devices"), st.dictionaries(st.sampled_from([*PLACES]), st.integers(1, 40))),
        st.tuples(st.just("ratio"), st.dictionaries(kinds, st.sampled_from([1.0, 1.5, 2.0, 3.0]))),
    ),
    min_size=4,
    max_size=40,
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@given(steps=steps, most=st.sampled_from([1, 2, 3, 16]))
@settings(max_examples=6, deadline=None)
def test_the_laws_of_packing_hold_at_every_entry(policy: str, steps: list[tuple[Any, ...]], most: int) -> None:
    played = PackedStudy(policy, most)
    free = {"a": 40, "b": 40}
    ratios: dict[str, float] = {}
    played.update(free, ratios)
    for step in steps:
        if step[0] == "end" and played.running:
            played.end(played.running[step[1] % len(played.running)], step[2], step[3])
        elif step[0] == "measured" and played.running:
            key = played.running[step[1] % len(played.running)]
            played.meter.seen[key] = step[2]
            played.measured.add(key)
        elif step[0] == "devices":
            free = step[1]
        elif step[0] == "ratio":
            ratios = step[1]
        played.update(free, ratios)
    assert played.judge(most) > 0
