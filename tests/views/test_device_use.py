"""What devices did, from results and failures alone."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_core import Outcome, Report, Study
from hpo_core.journal.codec import decode_entry
from hpo_core.model.devices.measurement import Usage
from hpo_core.views.device_use import DeviceJob, device_job, device_jobs, device_uses, mean_occupancy
from tests.conftest import make_spec
from tests.golden.make import FOLDER


def job(begin: float, end: float, **changes: Any) -> DeviceJob:
    made: dict[str, Any] = {"device": "gpu-0", "architecture": "A100", "compute": 500, "claimed": 4, "used": 3}
    return DeviceJob(begin=begin, end=end, **(made | changes))


def test_jobs_at_once_are_summed_and_means_are_over_time() -> None:
    jobs = [
        job(0, 6),
        job(2, 4),
        job(4, 6, failed=True),
        job(8, 10, compute=1000),
        job(0, 10, device="z"),
    ]
    first, other = device_uses(jobs)
    assert (first.name, first.jobs, first.failed, first.most_at_once) == ("gpu-0", 4, 1, 2)
    assert (first.claimed, first.used) == (8, 6), "one that begins as another ends does not add to it"
    assert first.busy == pytest.approx(0.8) and first.occupancy == pytest.approx((6 + 2 + 2) * 0.05 + 0.2)
    assert [(load.time, load.jobs) for load in first.load] == [(0, 1), (2, 2), (4, 2), (6, 0), (8, 1), (10, 0)]
    assert other.occupancy == 0.5 and mean_occupancy([first, other]) == pytest.approx((first.occupancy + 0.5) / 2)
    twice, _ = device_uses(jobs, lambda architecture: 2.0)
    assert twice.occupancy == pytest.approx(first.occupancy / 2), "of what may be given away"
    assert device_uses([]) == [] and mean_occupancy([]) is None


def test_a_cpu_device_counts_resident_memory_and_a_gpu_its_own() -> None:
    usage = Usage(memory=10, device_memory=70, device="d", architecture="A100", share=(100, 80, 1000))
    gpu = device_job(usage, begin=5, end=3)
    assert gpu is not None and gpu.used == 70 and gpu.end == 5, "a clock that ran backwards makes no negative time"
    cpu = device_job(Usage(memory=10, device="n", architecture="CPU", share=(1, 2, 3)), begin=0, end=1)
    assert cpu is not None and cpu.used == 10
    assert device_job(Usage(device="n", architecture="CPU"), begin=0, end=1) is None, "it had all of it"
    assert device_job(None, begin=0, end=1) is None


def test_results_and_failures_of_a_journal_are_found() -> None:
    entries = [decode_entry(line) for line in (FOLDER / "used-format-1.jsonl").read_text().splitlines()]
    found = device_jobs(Study.from_entries(entries).state)
    assert {(one.device, one.architecture, one.claimed) for one in found} == {("GPU-5d4e", "A100", 6_000_000_000)}
    study = Study.create(make_spec())
    first = study.ask()
    assert first is not None
    usage = Usage(memory=5, device="n", architecture="CPU", share=(10, 6, 1))
    study.tell_report(
        Report(
            trial=first.trial, attempt=0, outcome=Outcome.OUT_OF_MEMORY, message="m", started=1, ended=2, usage=usage
        )
    )
    (one,) = device_jobs(study.state)
    assert one.failed and one.used == 5 and one.end == 2
