"""One report of a gang: the rank that ended it is named, and what followed from that is not blamed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hpo_core.gangs.process_group import LOST_PEER, gang_report
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.trial import Checkpoint, Outcome, Report

PEER = f"It {LOST_PEER} (RuntimeError: Connection closed by peer)"


def report(outcome: Outcome, message: str = "", ended: float = 10.0, **more: Any) -> Report:
    return Report(trial=3, attempt=1, outcome=outcome, message=message, started=5.0, ended=ended, **more)


GOOD = report(Outcome.COMPLETED)
HUNG = "No step was finished within training.stall_timeout = 8 s, and its process was {}. Raise the limit."


@pytest.mark.parametrize(
    ("reports", "rank", "outcome"),
    [
        ([report(Outcome.LOST, PEER, 1), report(Outcome.CRASHED, "signal 11", 3), report(Outcome.LOST, PEER, 2)], 1,
         Outcome.CRASHED),
        ([report(Outcome.LOST, PEER, 1), report(Outcome.PREEMPTED, "", 2), report(Outcome.LOST, "worker died", 9)], 2,
         Outcome.LOST),
        ([report(Outcome.ERROR, "second", 4), report(Outcome.OUT_OF_MEMORY, "first", 3)], 1, Outcome.OUT_OF_MEMORY),
        ([report(Outcome.ERROR, "same time", 4), report(Outcome.ERROR, "by rank", 4)], 0, Outcome.ERROR),
        ([report(Outcome.HUNG, HUNG.format("sleeping"), 1), report(Outcome.HUNG, HUNG.format("stopped"), 3)], 1,
         Outcome.HUNG),
        ([report(Outcome.HUNG, HUNG.format("stopped"), 1), report(Outcome.LOST, "worker died", 3)], 1, Outcome.LOST),
        ([GOOD, report(Outcome.STORAGE, "disk full", 3)], 1, Outcome.STORAGE),
        ([report(Outcome.LOST, PEER, 2), report(Outcome.LOST, PEER + ".", 1)], 1, Outcome.LOST),
    ],
)  # fmt: skip
def test_the_rank_that_ended_the_gang_is_named(reports: list[Report], rank: int, outcome: Outcome) -> None:
    found = gang_report(reports)
    assert found.outcome is outcome and found.checkpoint is None
    assert found.message.startswith(f"Rank {rank} of {len(reports)}: {reports[rank].message}")
    others = [number for number in range(len(reports)) if number != rank]
    assert all(f"rank {number}: {reports[number].outcome.value}" in found.detail for number in others)
    assert (found.started, found.ended) == (5.0, max(one.ended for one in reports))


def test_a_cancelled_gang_is_preempted_and_what_all_found_is_said_once() -> None:
    cancelled = [report(Outcome.PREEMPTED, "ended on purpose"), report(Outcome.PREEMPTED, "ended on purpose")]
    assert gang_report(cancelled).message == "ended on purpose"
    assert gang_report([report(Outcome.ERROR, "the ranks trained apart")] * 3).message == "the ranks trained apart"


def test_a_result_is_that_of_rank_0_with_what_all_used() -> None:
    checkpoint = Checkpoint("a", "b", 3, 4)
    first = msgspec.structs.replace(GOOD, checkpoint=checkpoint, usage=Usage(memory=5, cores=0.5, unit_seconds=2.0))
    second = msgspec.structs.replace(GOOD, started=4.0, ended=12.0, usage=Usage(memory=7, cores=0.75))
    found = gang_report([first, second])
    assert found.checkpoint == checkpoint and (found.started, found.ended) == (4.0, 12.0)
    assert found.usage == Usage(memory=12, cores=1.25, unit_seconds=2.0)
    assert gang_report([GOOD, GOOD]).usage is msgspec.UNSET
