"""Studies that share slots, played on virtual clocks: nothing is held twice, nothing idles, shares are kept."""

from __future__ import annotations

import pytest

from hpo_core.pool.seat import ALONE_SECONDS, EXCHANGE_SECONDS, LEASE_SECONDS
from hpo_core.pool.store import Pools
from tests.sharing.in_memory import ENDLESS, MemoryPools, lasting
from tests.sharing.played_pool import PlayedPool, Player


@pytest.fixture
def pools() -> Pools:
    return MemoryPools()


def shares(*players: Player) -> list[float]:
    total = sum(player.used_seconds for player in players)
    return [player.used_seconds / total for player in players]


def test_weights_1_1_2_get_their_shares_and_no_slot_idles(pools: Pools) -> None:
    players = [
        Player(name, pools, seconds=lasting(6, name), search=ENDLESS, weight=weight)
        for name, weight in (("a", 1.0), ("b", 1.0), ("c", 2.0))
    ]
    pool = PlayedPool(*players)
    pool.play(30)
    for player in players:
        player.used_seconds = 0.0
    pool.longest_idle = 0.0
    pool.play(100)
    assert shares(*players) == pytest.approx([0.25, 0.25, 0.5], rel=0.1)
    assert pool.longest_idle <= 2 * EXCHANGE_SECONDS


def test_whole_studies_share_to_their_ends(pools: Pools) -> None:
    ladder = {"method": "asha", "configs": 20, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
    players = [
        Player("asha", pools, seconds=lambda job: 2.0 * job.target, search=ladder),
        Player("sha", pools, seconds=lambda job: 1.5 * job.target, search={**ladder, "method": "sha"}, begins=3.0),
        Player("random", pools, seconds=lasting(4), search={**ENDLESS, "configs": 30}, weight=2.0, begins=7.0),
        Player("pbt", pools, seconds=lasting(2), begins=20.0,
               search={"method": "pbt", "population": 6, "generations": 4, "steps_per_generation": 2}),
    ]  # fmt: skip
    pool = PlayedPool(*players)
    pool.play(300)
    assert [player.study.status for player in players] == ["finished"] * 4
    assert pool.longest_idle <= 2 * ALONE_SECONDS


def test_a_controller_that_was_stopped_gives_way_when_it_goes_on(pools: Pools) -> None:
    one = Player("one", pools, seconds=lambda job: 20.0 if job.trial < 8 else 70.0, search=ENDLESS)
    other = Player("other", pools, seconds=lambda job: 3.0, search=ENDLESS)
    pool = PlayedPool(one, other)
    pool.play(60)
    assert (one.used, other.used) == (4, 4)
    began = len(one.study.state.trials)
    one.stopped = True  # its jobs run on workers that know nothing of it, until 90
    pool.play(64 + LEASE_SECONDS, judged=False)
    assert other.used == 8, "its slots were free once its lease had run out"
    one.stopped = False
    one.clock.now = pool.now
    pool.play(88, judged=False)
    assert (one.used, len(one.study.state.trials)) == (4, began), "its jobs go on, and none begins"
    assert len(one.seat.held) + len(other.seat.held) <= 8
    pool.play(100)
    assert (one.used, other.used) == (4, 4)


HALVING = {"method": "sha", "configs": 4, "min_resource": 1, "max_resource": 4, "reduction_factor": 4}


def sizes(player: Player, level: int) -> set[int]:
    return {grant.demand.slots for grant in player.study.state.running.values() if grant.target == level}


def test_the_last_trial_grows_into_slots_that_nobody_claims_and_gives_them_back(pools: Pools) -> None:
    """Four jobs, then one of four slots: it is granted at the moment its study uses no more than one."""
    search = {**HALVING, "configs": 4}
    first = Player("first", pools, seconds=lambda job: 10.0 + job.trial if job.target == 1 else 400.0,
                   search=search, gang="auto")  # fmt: skip
    second = Player("second", pools, seconds=lasting(4), search=ENDLESS, begins=40.0)
    pool = PlayedPool(first, second)
    pool.play(30)
    assert sizes(first, 4) == {4} and first.used == 4
    pool.play(60)
    assert (first.used, second.used) == (4, 4), "a newcomer gets what was lent and is not used"
    assert all(not trial.failures for trial in first.study.state.trials)
