"""A partition that goes while models hop over it costs units, never trials; in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpo_core.execution.executor import OnReport
from hpo_core.execution.hopping.hopping_executor import PartitionsMissingError
from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import Worker
from hpo_core.model.devices.inventory import Device, HeldPartitions, Inventory, Slot
from hpo_core.model.events import AttemptFailed
from hpo_core.model.trial import Doubt, Job, Outcome, Report
from hpo_core.replay.audit import audit
from tests.hopping.hopping_studies import METHODS, VirtualHopping
from tests.methods import facts

LOOKS = 2.0
"""Seconds between two looks of a worker at its partitions."""


def with_losses(hopping: VirtualHopping, away: Callable[[float], bool], *, seen: bool = True) -> list[float]:
    """Have units on part-1 lost while it is away; returns when they were.

    Args:
        away: by the time.
        seen: whether workers that look see that it is.
    """
    units, doubted, losses = hopping.units, dict[str, float](), list[float]()
    submit, inventory = units.submit, units.inventory

    def lost(job: Job, slot: Slot, on_report: OnReport) -> None:
        now = units.now()
        if job.unit is None or job.unit.partition != "part-1" or not away(now):
            submit(job, slot, on_report)
            return
        losses.append(now)
        doubted[slot.name] = now
        doubt = Doubt(job.unit.partition)
        message = "Partition part-1 is not in /data, where this worker has its partitions."
        on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message=message,
                              worker=slot.name, doubt=doubt))  # fmt: skip

    def seen_inventory() -> Inventory:
        now = units.now()
        looked = [worker for worker, since in doubted.items() if now >= since + LOOKS]
        for worker in looked if not (seen and away(now)) else ():
            del doubted[worker]
        return Inventory(
            tuple(
                Device(each.name, partitions=HeldPartitions(each.partitions.names - {"part-1"}))
                if each.name in doubted
                else each
                for each in inventory().devices
            )
        )

    units.submit = lost  # type: ignore[method-assign]
    units.inventory = seen_inventory  # type: ignore[method-assign]
    hopping.executor.poll_seconds = 1.0
    hopping.loop = Loop(hopping.study, hopping.executor)
    return losses


def failures(hopping: VirtualHopping) -> list[AttemptFailed]:
    return facts(hopping.journal.entries(hopping.study.name), AttemptFailed)


@pytest.mark.parametrize("method", ["random", "asha", "pbt"])
@pytest.mark.parametrize("workers", [2, 8])
def test_one_that_is_away_for_a_while_costs_units_alone(method: str, workers: int) -> None:
    """More workers share the folder than a unit may be lost in a row."""
    hopping = VirtualHopping(search=METHODS[method], workers=[Worker()] * workers)
    losses = with_losses(hopping, lambda now: 10.0 <= now < 40.0)
    hopping.run()
    assert losses
    assert not failures(hopping)
    assert hopping.study.status == "finished"
    hopping.judge()
    assert audit(list(hopping.journal.entries(hopping.study.name))).clean


def test_one_that_does_not_come_back_stops_the_study_after_a_minute() -> None:
    hopping = VirtualHopping(search=METHODS["random"])
    with_losses(hopping, lambda now: now >= 10.0)
    with pytest.raises(
        PartitionsMissingError, match=r"^Partition part-1 of study 'hopping' has been on no worker for 60"
    ):
        hopping.run()
    assert not [failure for failure in failures(hopping) if failure.outcome is not Outcome.PREEMPTED]
    assert 70.0 <= hopping.clock.now < 90.0


def test_one_that_can_never_be_used_though_it_is_there_stops_the_study_and_blames_no_trial() -> None:
    """A mount that fails whenever it is read: without an end models would be sent to it for ever."""
    hopping = VirtualHopping(search=METHODS["random"])
    losses = with_losses(hopping, lambda now: now >= 10.0, seen=False)
    with pytest.raises(PartitionsMissingError, match=r"^Partition part-1 .* failed again and again .* is not in /data"):
        hopping.run()
    assert len(losses) >= 10
    assert not [failure for failure in failures(hopping) if failure.worker or failure.outcome is Outcome.ERROR]
