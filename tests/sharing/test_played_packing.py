"""Packed studies that share devices: one study on a device at a time, shares kept, nothing lost."""

from __future__ import annotations

import random

import pytest

from hpo_core.pool.seat import LEASE_SECONDS
from hpo_core.pool.store import Pools
from tests.sharing.in_memory import ENDLESS, MemoryPools, lasting, used
from tests.sharing.played_packing import PackedPlayer, PlayedDevices, gpus


@pytest.fixture
def pools() -> Pools:
    return MemoryPools()


def test_whole_studies_share_to_their_ends_with_fewer_devices_than_studies(pools: Pools) -> None:
    ladder = {"method": "asha", "configs": 20, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
    players = [
        PackedPlayer("asha", pools, seconds=lambda job: 2.0 * job.target, devices=gpus(2), search=ladder),
        PackedPlayer("sha", pools, seconds=lambda job: 1.5 * job.target, devices=gpus(2), begins=3.0,
                     search={**ladder, "method": "sha"}, each=400),
        PackedPlayer("random", pools, seconds=lasting(4), devices=gpus(2), begins=7.0, priority=1,
                     search={**ENDLESS, "configs": 30}, each=120),
    ]  # fmt: skip
    played = PlayedDevices(*players)
    played.play(500)
    assert [player.study.status for player in players] == ["finished"] * 3
    assert all(not trial.failures for player in players for trial in player.study.state.trials)
    played.check()


def test_a_study_that_fills_one_device_leaves_the_others(pools: Pools) -> None:
    """Four jobs of a fifth of a device each: it claims no device for each of them."""
    small = PackedPlayer("small", pools, seconds=lambda job: 50.0, devices=gpus(4), each=200, weight=9.0,
                         search={**ENDLESS, "configs": 4})  # fmt: skip
    large = PackedPlayer("large", pools, seconds=lasting(5), devices=gpus(4), search=ENDLESS, begins=2.0)
    played = PlayedDevices(small, large)
    played.play(2.5)
    assert small.seat.mine.demand == 1, "from the beginning"
    played.play(15)
    assert (used(small.executor), used(large.executor)) == (1, 3)
    assert small.seat.mine.demand == 1
    played.check()


def test_devices_of_a_dead_controller_are_free_after_its_lease(pools: Pools) -> None:
    one, other = (
        PackedPlayer(name, pools, seconds=lasting(4, name), devices=gpus(2), search=ENDLESS)
        for name in ("one", "other")
    )
    played = PlayedDevices(one, other)
    played.play(20)
    assert (used(one.executor), used(other.executor)) == (1, 1)
    played.kill(one)
    played.play(20 + LEASE_SECONDS - 6)
    assert used(other.executor) == 1
    played.play(20 + LEASE_SECONDS + 4)
    assert used(other.executor) == 2
    again = PackedPlayer("one", pools, seconds=lasting(4), devices=gpus(2), search=ENDLESS, owner="one-2",
                         begins=played.now)  # fmt: skip
    played.join(again)
    played.play(played.now + 20)
    assert (used(again.executor), used(other.executor)) == (1, 1)
    played.check()


def test_studies_that_see_different_devices_use_all_that_they_can(pools: Pools) -> None:
    """`narrow` sees one device of the three: the other one gives it up, for another will do."""
    wide = PackedPlayer("wide", pools, seconds=lambda job: 6.0, devices=gpus(3), search=ENDLESS)
    narrow = PackedPlayer("narrow", pools, seconds=lambda job: 6.0, devices=gpus(1), search=ENDLESS, begins=10.0)
    played = PlayedDevices(wide, narrow)
    played.play(60)
    assert (used(wide.executor), used(narrow.executor)) == (2, 1)
    played.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_mixes_of_packed_studies_all_end(seed: int) -> None:
    """Devices seen, sizes and lengths of jobs, priorities, arrivals and a death: all drawn."""
    pools, draw = MemoryPools(), random.Random(seed)
    count = draw.randint(1, 3)
    ladder = {"configs": 12, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
    searches = [{"method": method, **ladder} for method in ("asha", "sha")]
    searches.append({"method": "random", "configs": 15, "max_resource": 1})
    players = []
    for number in range(draw.randint(2, 4)):
        seen = draw.randint(1, count)
        players.append(
            PackedPlayer(
                f"s{number}", pools, seconds=lasting(draw.choice([0.7, 4.0, 15.0]), f"{seed} {number}"),
                devices=gpus(seen, draw.randint(0, count - seen)), search=draw.choice(searches),
                each=draw.choice([120, 400, 900]), begins=draw.choice([0.0, 7.0, 40.0]),
                weight=draw.choice([1.0, 2.0, 5.0]), priority=draw.choice([0, 0, 1]),
            )
        )  # fmt: skip
    played = PlayedDevices(*players)
    if draw.random() < 0.5:
        played.play(30.0)
        played.kill(players[0])
    played.play(2500)
    assert [player.study.status for player in played.players] == ["finished"] * len(played.players)
    played.check()
