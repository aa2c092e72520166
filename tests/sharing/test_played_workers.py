"""Studies whose models hop share workers with each other and with plain ones; their journals are the judge."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hpo_core.execution.hopping.hopping_executor import MISSING_SECONDS, PartitionsMissingError
from hpo_core.model.events import AttemptFailed, CapacityChanged
from hpo_core.pool.seat import BEAT_SECONDS, EXCHANGE_SECONDS, LEASE_SECONDS
from hpo_core.pool.store import Pools
from hpo_core.replay.audit import audit
from tests.sharing.in_memory import MemoryPools, used
from tests.sharing.played_workers import Hopper, Plain, PlayedCluster, one_slot_each

FOUR = [f"worker-{number}" for number in range(4)]
EVERYWHERE = dict.fromkeys(FOUR, range(4))
LONG = {"method": "random", "configs": 60, "max_resource": 2}


@pytest.fixture
def pools() -> Pools:
    return MemoryPools()


def failed(player: Any) -> list[AttemptFailed]:
    """Attempts that ended without a result, as its journal says."""
    entries = player.study.journal.entries(player.name)
    return [event for entry in entries for event in entry.events if isinstance(event, AttemptFailed)]


def shares(*players: Any, since: float, until: float) -> list[float]:
    seconds = [player.seconds(since, until) for player in players]
    return [one / sum(seconds) for one in seconds]


def test_two_hopping_studies_share_and_neither_idles_workers(pools: Pools) -> None:
    one, other = Hopper("one", pools, EVERYWHERE), Hopper("other", pools, EVERYWHERE)
    cluster = PlayedCluster(one_slot_each(FOUR), one, other)
    cluster.play(200)
    cluster.judge()
    assert one.ended and other.ended
    assert cluster.now <= 1.3 * (one.seconds(0, 200) + other.seconds(0, 200)) / 4
    for player in (one, other):
        assert audit(player.study.journal.entries(player.name)).clean


def test_three_hopping_studies_have_their_shares(pools: Pools) -> None:
    players = [
        Hopper(name, pools, EVERYWHERE, search={**LONG, "configs": 200}, weight=weight, epoch=lambda job: 20.0)
        for name, weight in (("a", 1.0), ("b", 1.0), ("c", 2.0))
    ]
    cluster = PlayedCluster(one_slot_each(FOUR), *players)
    cluster.play(300)
    cluster.judge()
    assert shares(*players, since=20, until=250) == pytest.approx([0.25, 0.25, 0.5], abs=0.1)
    assert sum(player.seconds(20, 250) for player in players) >= 0.75 * 4 * 230


def test_weights_and_priorities_hold_between_hopping_and_plain_studies(pools: Pools) -> None:
    heavy = Hopper("heavy", pools, EVERYWHERE, search=LONG, weight=3.0)
    light = Plain("light", pools, one_slot_each(FOUR), seconds=lambda job: 2.0)
    first = Hopper("first", pools, EVERYWHERE, priority=1, begins=150.0)
    cluster = PlayedCluster(one_slot_each(FOUR), heavy, light, first)
    cluster.play(150)
    assert shares(heavy, light, since=10, until=148) == pytest.approx([0.75, 0.25], abs=0.05)
    cluster.play(400)
    cluster.judge()
    assert first.ended
    ended = max(span.ended for span in first.spans())
    assert ended - 150 <= 1.5 * first.seconds(150, 400) / 4, "it has all workers"


def test_a_hopping_study_gets_the_workers_that_hold_all_partitions(pools: Pools) -> None:
    """Others, which hold some of them, are of no use to it beside other studies."""
    holdings = {"worker-0": range(4), "worker-1": range(4), "worker-2": range(2), "worker-3": []}
    plain = Plain("plain", pools, one_slot_each(FOUR), seconds=lambda job: 5.0)
    hopper = Hopper("hopper", pools, holdings, begins=10.0)
    cluster = PlayedCluster(one_slot_each(FOUR), plain, hopper)
    cluster.play(200)
    cluster.judge()
    assert hopper.ended and {span.worker for span in hopper.spans()} == {"worker-0", "worker-1"}
    assert min(span.began for span in hopper.spans()) <= 10 + 5 + 4 * EXCHANGE_SECONDS


def test_a_plain_studys_long_job_on_a_worker_with_the_partitions_is_waited_for(pools: Pools) -> None:
    """No partition is missing, however long another study has its worker."""
    long = 3 * MISSING_SECONDS
    plain = Plain("plain", pools, one_slot_each(FOUR), seconds=lambda job: long,
                  search={"method": "random", "configs": 4, "max_resource": 1})  # fmt: skip
    hopper = Hopper("hopper", pools, EVERYWHERE, begins=5.0)
    cluster = PlayedCluster(one_slot_each(FOUR), plain, hopper)
    cluster.play(long - 5)
    assert used(plain.executor) == 4 and not list(hopper.spans())
    cluster.play(long + 120)
    cluster.judge()
    assert plain.ended and hopper.ended


def test_a_study_whose_partitions_lie_together_on_no_worker_stops_in_words(pools: Pools) -> None:
    hopper = Hopper("hopper", pools, {worker: [number] for number, worker in enumerate(FOUR)}, search=LONG)
    with pytest.raises(PartitionsMissingError, match="with share, on workers that hold all partitions"):
        PlayedCluster(one_slot_each(FOUR), hopper).play(MISSING_SECONDS + 30)


def test_a_controller_that_was_stopped_starts_no_unit_on_workers_that_went_to_others(pools: Pools) -> None:
    one, other = (Hopper(name, pools, EVERYWHERE, search=LONG, epoch=lambda job: 2.0) for name in ("one", "other"))
    cluster = PlayedCluster(one_slot_each(FOUR), one, other)
    cluster.play(40)
    one.stopped = True
    assert len(one.seat.held) == 2
    cluster.play(50 + LEASE_SECONDS)
    assert len(other.seat.held) == 4
    one.stopped = False
    one.goes_on(cluster.now)
    cluster.play(cluster.now + 0.5)
    assert not one.seat.open(one.clock.now) & other.seat.open(other.clock.now)
    cluster.play(95)
    assert any(span.began > 50 + LEASE_SECONDS for span in one.spans())
    assert not [span for span in one.spans() if 40 < span.began < 50 + LEASE_SECONDS]
    assert len(one.seat.held) == len(other.seat.held) == 2
    assert not failed(one), "no unit was lost by its own fault"


def test_the_capacity_changes_with_the_share_and_not_with_each_hop(pools: Pools) -> None:
    players = [Hopper(name, pools, EVERYWHERE, search=LONG) for name in ("one", "other")]
    PlayedCluster(one_slot_each(FOUR), *players).play(100)
    for player in players:
        changes = [event for entry in player.study.journal.entries(player.name) for event in entry.events
                   if isinstance(event, CapacityChanged)]  # fmt: skip
        assert 1 <= len(changes) <= 4


def test_whole_workers_of_several_slots_are_found_among_plain_jobs(pools: Pools) -> None:
    threads = dict.fromkeys(FOUR[:2], 4)
    plain = [Plain(name, pools, threads, seconds=lambda job: 4.0 + job.trial % 3) for name in "ab"]
    hopper = Hopper("hopper", pools, dict.fromkeys(FOUR[:2], range(2)), begins=20.0, threads=threads, weight=2.0)
    cluster = PlayedCluster(threads, *plain, hopper)
    cluster.play(200)
    cluster.judge()
    assert hopper.ended
    first = min(span.began for span in hopper.spans())
    assert first - 20 <= BEAT_SECONDS + 2 * 6.0 + 3 * EXCHANGE_SECONDS


@pytest.mark.parametrize(("sizes", "most"), [((4, 1), 0.65)])
def test_a_study_alone_uses_all_workers_where_they_differ_in_slots(
    pools: Pools, sizes: tuple[int, ...], most: float
) -> None:
    """A worker is one place, whatever its slots: shares in slots of the largest one left the small ones idle."""
    threads = dict(zip(FOUR, sizes, strict=False))
    hopper = Hopper("alone", pools, dict.fromkeys(threads, range(2)), threads=threads)
    cluster = PlayedCluster(threads, hopper)
    cluster.play(600)
    cluster.judge()
    assert hopper.ended and cluster.now <= most * hopper.seconds(0, 600)


def test_gangs_hold_slots_of_workers_beside_models_that_hop(pools: Pools) -> None:
    threads = one_slot_each(FOUR)
    gang = Plain("gang", pools, threads, seconds=lambda job: 10.0, gang=2,
                 search={"method": "random", "configs": 12, "max_resource": 1})  # fmt: skip
    hopper = Hopper("hopper", pools, EVERYWHERE)
    cluster = PlayedCluster(threads, gang, hopper)
    cluster.play(600)
    cluster.judge()
    assert gang.ended and hopper.ended


@pytest.mark.parametrize("seed", range(4))
def test_random_studies_all_end(pools: Pools, seed: int) -> None:
    draw = random.Random(seed)
    workers = [f"worker-{number}" for number in range(draw.randint(1, 5))]
    threads = {worker: draw.choice([1, 1, 1, 2, 4]) if seed % 2 else 1 for worker in workers}
    players: list[Any] = []
    for number in range(draw.randint(1, 3)):
        holdings: dict[str, list[int]] = {worker: [] for worker in workers}
        for place in range(draw.randint(1, 4)):
            for worker in workers:
                holdings[worker].append(place)
        epoch = draw.choice([2.0, 6.0, 20.0])
        ladder = {"method": draw.choice(["asha", "sha"]), "configs": 6, "min_resource": 1, "max_resource": 4,
                  "reduction_factor": 2}  # fmt: skip
        flat = {"method": "random", "configs": draw.randint(1, 8), "max_resource": draw.randint(1, 3)}
        players.append(
            Hopper(f"h{number}", pools, holdings, search=draw.choice([ladder, flat]), begins=draw.choice([0, 7, 31]),
                   epoch=lambda job, epoch=epoch: epoch, threads=threads, weight=draw.choice([1.0, 1.0, 3.0]),
                   data=draw.choice([{}, {"concurrent": 1}]))
        )  # fmt: skip
    for number in range(draw.randint(0, 2)):
        seconds = draw.choice([1.0, 5.0, 40.0])
        players.append(
            Plain(f"c{number}", pools, threads, seconds=lambda job, seconds=seconds: seconds,
                  begins=draw.choice([0, 9]), search={**LONG, "configs": draw.choice([5, 30]), "max_resource": 1})
        )  # fmt: skip
    cluster = PlayedCluster(threads, *players)
    cluster.play(6000)
    cluster.judge()
    assert [player.name for player in players if not player.ended] == []
