"""Every search method on models that hop: the loop and the executor as they are, workers in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.played_hops import lower_bound
from hpo_core.execution.hopping.hopping_executor import PartitionsMissingError
from hpo_core.execution.virtual import Faults, VirtualAttempt, Worker
from hpo_core.model.devices.inventory import Device, HeldPartitions, Inventory
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Outcome, Report
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.retraining.repeated_studies import repeats_spec
from hpo_core.spec.refusals import check_retraining
from tests.hopping.hopping_studies import METHODS, VirtualHopping
from tests.virtual_units import VirtualUnits


@pytest.mark.parametrize("validation", [0, 2])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_visits_every_partition_once_an_epoch(method: str, validation: int) -> None:
    world = VirtualHopping(search=METHODS[method], validation=validation).run()
    assert world.study.status == "finished"
    world.judge()
    assert audit(list(world.journal.entries("hopping"))).clean
    assert not world.executor._trainings


@pytest.mark.parametrize("scheduler", ["remaining", "randomized"])
def test_partitions_stay_where_they_lie(scheduler: str) -> None:
    held = {"worker-0": ["part-0", "val-0"], "worker-1": ["part-1"], "worker-2": ["part-2", "val-1"]}
    workers = [Worker(), Worker(speed=0.5), Worker(speed=2.0)]
    world = VirtualHopping(
        search=METHODS["asha"], validation=2, workers=workers, holdings=held, data={"scheduler": scheduler}
    )
    world.run().judge()
    assert {visit.worker for event in world.completed() for visit in event.visits} == set(held)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_workers_that_come_go_and_drop_units_lose_nothing(data: st.DataObject) -> None:
    many = data.draw(st.integers(2, 4))
    spans = [
        (data.draw(st.floats(0, 40)), data.draw(st.floats(1, 60)), data.draw(st.sampled_from([0.5, 1.0, 2.0])))
        for _ in range(many)
    ]
    workers = [Worker(), *[Worker(speed=v, joins=joins, leaves=joins + stay) for joins, stay, v in spans]]
    faults = Faults(drops=data.draw(st.sampled_from([0.0, 0.02])), stragglers=data.draw(st.sampled_from([0.0, 0.5])))
    method = data.draw(st.sampled_from(["random", "asha", "pbt"]))
    world = VirtualHopping(search=METHODS[method], validation=1, workers=workers, faults=faults).run()
    assert world.study.status == "finished"
    world.judge()


def test_a_partition_on_no_worker_stops_the_study_by_its_name() -> None:
    held = {"worker-0": ["part-0", "part-1"], "worker-1": ["part-2"]}
    workers = [Worker(), Worker(leaves=10.0), Worker(joins=30.0), Worker(joins=200.0)]
    world = VirtualHopping(
        search=METHODS["random"], workers=workers, holdings=held | {"worker-2": ["part-0"], "worker-3": ["part-0"]}
    )
    with pytest.raises(PartitionsMissingError, match=r"^Partition part-2 of study 'hopping' has been on no worker"):
        world.run()
    again = VirtualHopping(
        search=METHODS["random"], workers=workers, holdings=held | {"worker-2": ["part-0", "part-2"]}
    )
    again.run().judge()


def test_a_worker_that_still_reads_its_partitions_is_waited_for() -> None:
    """Digests of large partitions take longer than a minute; how long they may take depends on their bytes."""
    held = {"worker-0": ["part-0", "part-1"], "worker-1": ["part-2"], "worker-2": ["part-2"]}
    workers = [Worker(), Worker(leaves=10.0), Worker(joins=400.0), *(Worker(joins=10.0 * n) for n in range(2, 40))]
    held |= {f"worker-{number}": [] for number in range(3, len(workers))}  # virtual time passes as they come
    known = {"bytes": 10_000_000_000, "digest": "0" * 64}
    for digests_end, sizes, waited in ((380.0, known, True), (200.0, known, False), (380.0, {}, False)):
        data = {"partitions": [{"name": f"part-{place}", "count": 1} | sizes for place in range(3)]}
        world = VirtualHopping(search=METHODS["random"], workers=workers, holdings=held, data=data)
        problems = {} if waited else {"part-2": "Partition part-2 in /data is no regular file."}

        def inventory(
            world: VirtualHopping = world, end: float = digests_end, problems: dict[str, str] = problems
        ) -> Inventory:
            return Inventory(
                tuple(
                    Device(each.name, partitions=HeldPartitions(each.partitions.names, problems, world.clock.now < end))
                    for each in VirtualUnits.inventory(world.units).devices
                )
            )

        world.units.inventory = inventory
        if waited:
            world.run().judge()
            continue
        with pytest.raises(PartitionsMissingError, match=r"part-2 .* no regular file\. Nothing recorded is lost"):
            world.run()
        assert world.clock.now == pytest.approx(260.0 if sizes else 130.0, abs=15.0)


@pytest.mark.parametrize(
    ("method", "changes", "most"),
    [
        ("random", {}, 6),
        ("random", {"data": {"concurrent": 1}}, 1),
        ("random", {"data": {"concurrent": 15}}, 15),
        ("random", {"more": {"stop": {"seconds": 100.0}}}, 4),
        ("random", {"more": {"sampler": {"name": "TPESampler"}}}, 4),
        ("random", {"workers": [Worker()] * 16}, 32),
        ("grid", {}, 14),
        ("sha", {}, 9),
        ("hyperband", {}, 17),
        ("pbt", {}, 8),
        ("asha", {}, 4),
        ("pasha", {}, 4),
        ("endless", {"more": {"stop": {"seconds": 100.0}}}, 4),
        ("large", {}, 1_000),
    ],
)
def test_how_many_models_train_at_once_follows_from_the_search(method: str, changes: dict[str, Any], most: int) -> None:
    """The source schedules all configurations; two for each worker where a search asks for them by results."""
    searches = METHODS | {
        "grid": {"method": "grid", "points": {"x": 14}},
        "pbt": {"method": "pbt", "population": 8, "generations": 3},
        "endless": {"method": "random", "max_resource": 2},
        "large": {"method": "random", "max_resource": 2, "configs": 5_000},
    }
    world = VirtualHopping(search=searches[method], **changes)
    assert world.executor.inventory().slots == most


@pytest.mark.parametrize(("models", "workers", "method"), [(17, 8, "grid"), (17, 8, "random"), (48, 16, "random")])
@pytest.mark.parametrize("alike", [True, False])
def test_a_one_shot_search_ends_near_its_bound(models: int, workers: int, method: str, alike: bool) -> None:
    """With two models for each worker, 17 on 8 ended at 1.4 times the bound: the last one trained alone."""
    search = {"method": "random", "max_resource": 1, "configs": models}
    if method == "grid":
        search = {"method": "grid", "max_resource": 1, "points": {"x": models}}
    held = {f"worker-{number}": [f"part-{number}"] for number in range(workers)}
    world = VirtualHopping(search=search, workers=[Worker()] * workers, partitions=workers, holdings=held)
    costs = {job: 8.0 if alike else 4.0 + 8.0 * Stream(job, "cost", workers).uniform() for job in range(models)}
    world.units._seconds = lambda job: costs[job.trial] * workers
    world.run()
    world.judge()
    bound = lower_bound([[cost] * workers for cost in costs.values()])
    ended = max(visit.ended for event in world.completed() for visit in event.visits)
    assert ended <= (1.001 if alike else 1.04) * bound, ended / bound


@pytest.mark.parametrize("method", ["asha", "pbt", "random"])
def test_a_rerun_follows_the_recorded_visits_on_any_number_of_workers(method: str) -> None:
    held = {"worker-0": ["part-0"], "worker-1": ["part-1"], "worker-2": ["part-2"]}
    first = VirtualHopping(search=METHODS[method], workers=[Worker(), Worker(speed=3.0), Worker()], holdings=held).run()
    assert len(set(first.orders().values())) > 1
    spec = rerun_spec(list(first.journal.entries("hopping")), "again")
    for workers in ([Worker()], [Worker(speed=0.3), Worker(), Worker(), Worker(speed=2.0)]):
        again = VirtualHopping(spec=spec, workers=workers).run()
        again.judge()
        assert again.orders() == first.orders()
    once_more = rerun_spec(list(again.journal.entries("again")), "once-more")
    assert once_more.search.order_of_visits(0) == spec.search.order_of_visits(0) != {}


def test_repeats_of_a_trial_follow_its_visits_each() -> None:
    first = VirtualHopping(search=METHODS["pbt"]).run()
    entries = list(first.journal.entries("hopping"))
    trial = next(one.number for one in reversed(first.study.state.trials) if one.results)
    spec = repeats_spec(entries, "repeats", trial=trial, repeats=3, changes={})
    again = VirtualHopping(spec=spec).run()
    once = rerun_spec(entries, "once", trials=[trial]).search
    for place in range(len(spec.search.record().params)):
        followed = {epoch - 1: tuple(order) for epoch, order in once.order_of_visits(place // 3).items()}
        done = {epoch: order for (one, epoch), order in again.orders().items() if one == place}
        assert done and done == {epoch: followed[epoch] for epoch in done}
    with pytest.raises(SpecError, match=r"'hopping' trains on partitions .* warm_start: {studies: \[hopping\]}"):
        check_retraining(first.study.spec)


def test_a_damaged_state_is_not_blamed_on_the_checkpoint_that_the_job_began_with() -> None:
    """The state after the last epoch lies beside the checkpoints; those of validation start from it."""
    world = VirtualHopping(search=METHODS["sha"], validation=1)
    original, damaged = world.units._result, []

    def result(attempt: VirtualAttempt) -> Report:
        job = attempt.job
        if not job.unit.trains and job.target == 3 and not damaged:
            damaged.append(job)
            return Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.CHECKPOINT_BAD, message="truncated")
        return original(attempt)

    world.units._result = result
    world.run().judge()
    assert damaged and damaged[0].checkpoint.uri.startswith("checkpoints/")
    assert not any(trial.failures or trial.condemned for trial in world.study.state.trials)


def test_evaluations_are_means_weighted_by_examples() -> None:
    world = VirtualHopping(search=METHODS["random"], validation=2, counts=[1, 1, 1, 30, 10])
    world.units.evaluate = lambda job: {"loss": 1.0 if job.unit.partition == "val-0" else 5.0}
    world.run()
    assert all(event.metrics["loss"] == pytest.approx((30 * 1.0 + 10 * 5.0) / 40) for event in world.completed())
    assert len(world.completed()) == 6
