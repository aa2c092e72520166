"""PooledDevices: whole devices held by name, given back once their jobs have ended, never two studies on one."""

from __future__ import annotations

import msgspec
import pytest

from hpo_core.model.devices.inventory import Capacity, Device, Inventory, Slot
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.pool.division import Member
from hpo_core.pool.executor import NamedPlaces, PooledExecutor, pool_name
from hpo_core.pool.seat import LEASE_SECONDS, WHOLE_DEVICES, PoolSeat, Terms, Use, pool_of
from hpo_core.pool.store import PoolRow
from hpo_core.pool.words import standing_of
from hpo_core.spec import StudySpec
from tests.conftest import make_spec
from tests.sharing.in_memory import MemoryPools, used
from tests.sharing.test_pooled_executor import ByHand, Endless

NAMES = ("gpu-0", "gpu-1")


class ByHandOnDevices(ByHand):
    """Two devices, four jobs at once on each."""

    def inventory(self) -> Inventory:
        return Inventory(tuple(Device(name, 4) for name in NAMES[: self.slots]))


class Side:
    """One study in the pool."""

    def __init__(self, pools: MemoryPools, name: str) -> None:
        self.inner = ByHandOnDevices(2)
        self.seat = PoolSeat(pools, Terms(pool="p", study=name, owner=name, unit="device"), Endless())
        self.pooled = PooledExecutor(self.inner, self.seat, NamedPlaces(lambda most: most))
        self.told: list[Report] = []

    def open(self, now: float) -> list[str]:
        """Devices on which jobs may begin at this moment."""
        self.inner.moment = now
        inventory = self.pooled.inventory()
        assert [device.name for device in inventory.devices] == list(NAMES), "all of them are known"
        assert {device.slots for device in inventory.devices} <= {0, 4}
        return [device.name for device in inventory.devices if device.slots]

    def submit(self, trial: int, device: str) -> None:
        job = Job(trial, 0, Rung(0, 0), 1, {})
        slot = Slot(NAMES.index(device), 0, device)
        self.pooled.submit(job, slot, lambda _, report: self.told.append(report))


@pytest.fixture
def pools() -> MemoryPools:
    return MemoryPools()


def test_a_device_is_given_back_whole_once_its_jobs_have_ended(pools: MemoryPools) -> None:
    a, b = Side(pools, "a"), Side(pools, "b")
    assert a.open(0.0) == ["gpu-0", "gpu-1"]
    for trial, device in enumerate(["gpu-0", "gpu-0", "gpu-1"]):
        a.submit(trial, device)
    assert used(a.pooled) == 2
    assert b.open(0.5) == []
    assert a.open(2.5) == ["gpu-0"], "the device of the youngest job is given back"
    a.submit(3, "gpu-0")
    assert (a.open(4.0), b.open(4.0)) == (["gpu-0"], []), "its job goes on"
    assert sorted(a.seat.held) == ["gpu-0", "gpu-1"]
    a.inner.end(2)
    assert (a.open(5.5), b.open(5.6)) == (["gpu-0"], ["gpu-1"])
    assert b.seat.held == ("gpu-1",) and a.seat.held == ("gpu-0",)
    assert not a.told[1:] and a.told[0].outcome is Outcome.COMPLETED


def test_a_job_whose_device_went_to_another_study_before_it_began_is_granted_again(pools: MemoryPools) -> None:
    a, b = Side(pools, "a"), Side(pools, "b")
    a.open(0.0)
    b.open(0.5)
    for now in (2.5, 4.0):
        kept = a.open(now)
        b.open(now + 0.1)
    other = next(name for name in NAMES if name not in kept)
    a.submit(0, other)
    a.submit(1, kept[0])
    assert list(a.inner.begun) == [1]
    (report,) = a.told
    assert (report.trial, report.outcome) == (0, Outcome.PREEMPTED) and "went to another study" in report.message


def test_a_controller_that_was_stopped_holds_nothing_that_others_took(pools: MemoryPools) -> None:
    a, b = Side(pools, "a"), Side(pools, "b")
    a.open(0.0)
    a.submit(0, "gpu-0")
    for second in range(1, int(LEASE_SECONDS) + 6):
        b.open(float(second))
    assert b.open(LEASE_SECONDS + 6) == ["gpu-0", "gpu-1"], "its lease has run out"
    a.inner.moment = LEASE_SECONDS + 6
    assert not a.seat.is_fresh(a.inner.moment), "what it held is not its own any more"
    assert a.open(LEASE_SECONDS + 6) == [] and not a.seat.held
    a.submit(1, "gpu-0")
    assert list(a.inner.begun) == [0]
    for second in range(30, 80):
        b.open(float(second))
        found = a.open(second + 0.1)
    assert len(found) == 1 and set(a.seat.held).isdisjoint(b.seat.held)


def test_a_device_that_vanished_is_not_held_and_one_that_joins_is_used(pools: MemoryPools) -> None:
    a = Side(pools, "a")
    a.inner.slots = 1
    a.pooled.inventory()
    assert a.seat.held == ("gpu-0",)
    a.inner.slots = 2
    assert a.open(0.1) == ["gpu-0", "gpu-1"]
    a.inner.slots = 1
    a.inner.moment = 3.0
    a.pooled.inventory()
    assert a.seat.held == ("gpu-0",)


def test_the_processors_of_a_computer_have_one_name_for_all_studies() -> None:
    def named(name: str, node: str, gpu: bool = False) -> str:
        capacity = Capacity(node=node, architecture="CPU", memory=1, free=1, cores=1000, gpu=gpu)
        return pool_name(Device(name, 8, capacity))

    assert named("cpu:one", "one boot-1") == named("cpu:one~123456", "one boot-1") != named("cpu:one", "one boot-2")
    assert named("GPU-7", "one boot-1", gpu=True) == "GPU-7" and pool_name(Device("tcp://w:1")) == "tcp://w:1"


def test_a_planted_row_without_measure_is_no_member() -> None:
    many = msgspec.json.encode({"study": "x", "usable": ["d"] * 5000})
    long = msgspec.json.encode({"study": "x", "usable": ["d" * 500]})
    for text in (many, long):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=Member)


def test_words_say_devices(pools: MemoryPools) -> None:
    a, b = Side(pools, "a"), Side(pools, "b")
    a.open(0.0)
    a.submit(0, "gpu-0")
    a.submit(1, "gpu-1")
    b.open(0.5)
    a.open(2.5)
    words = standing_of(b.seat.row, b.seat.others).words
    assert "1 of 2 devices" in words and "gives devices back as jobs end" in words
    assert "It could use 1 more: the devices are shared with a by weight." in words


def test_packed_studies_are_in_a_pool_of_their_own() -> None:
    plain = {"share": {"pool": "gpu"}, "cluster": {"kind": "local", "workers": 2}}
    packed = make_spec(**plain, packing=True)
    assert pool_of(packed, "x") == f"{pool_of(make_spec(**plain), 'x')}{WHOLE_DEVICES}"
    assert packed.share is not None and StudySpec.from_journal(packed.plain()).packing == packed.packing


def test_what_a_row_cannot_hold_is_not_used() -> None:
    """A row that is out of range is no member: the devices that it names would be free for all."""
    names = ["x" * 301, *(f"d{number}" for number in range(5000))]
    seat = PoolSeat(MemoryPools(), Terms(pool="p", study="a", owner="o", unit="device"), Endless())
    seat.exchange(0.0, Use(len(names), 0, names))
    assert len(seat.held) == 4096 and "x" * 301 not in seat.held
    assert msgspec.json.decode(msgspec.json.encode(seat.mine), type=Member) == seat.mine


def test_slots_of_a_dead_controller_are_not_said_to_be_free_at_once() -> None:
    """Who looks from this machine knows that it died; the others count its sign of life for a while."""
    mine = Member(study="a", demand=1, unit="device", usable=("gpu-0",))
    assert standing_of(PoolRow("p", "a", mine), []).why.endswith(
        "taken at its next look; those of a controller that died, within 20 s."
    )
    assert LEASE_SECONDS == 20
