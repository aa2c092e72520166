"""What devices did, from results and failures alone."""

from __future__ import annotations

import pytest

from hpo_core import Outcome, Report, Study
from hpo_core.journal.codec import decode_entry
from hpo_core.model.devices.measurement import Usage
from hpo_core.report.series import read_series
from hpo_core.spec.packing import PackingSpec
from hpo_core.views.device_use import Span, device_uses, mean_occupancy, sharing
from tests.conftest import make_spec
from tests.golden.make import FOLDER


def job(begin: float, end: float, *, device: str = "gpu-0", compute: int = 500, failed: bool = False) -> Span:
    usage = Usage(memory=9, device_memory=3, device=device, architecture="A100", share=(compute, 4, 1000))
    outcome = Outcome.ERROR if failed else Outcome.COMPLETED
    return Span(trial=0, attempt=0, target=1, start=begin, end=end, outcome=outcome, shared=usage)


def test_jobs_at_once_are_summed_and_means_are_over_time() -> None:
    jobs = [
        job(0, 6),
        job(2, 4),
        job(4, 6, failed=True),
        job(8, 10, compute=1000),
        job(0, 10, device="z"),
    ]
    first, other = device_uses(jobs, PackingSpec())
    assert (first.name, first.jobs, first.failed, first.most_at_once) == ("gpu-0", 4, 1, 2)
    assert (first.claimed, first.used) == (8, 6), "one that begins as another ends does not add to it"
    assert first.busy == pytest.approx(0.8) and first.occupancy == pytest.approx((6 + 2 + 2) * 0.05 + 0.2)
    assert [(load.time, load.jobs) for load in first.load] == [(0, 1), (2, 2), (4, 2), (6, 0), (8, 1), (10, 0)]
    assert other.occupancy == 0.5 and mean_occupancy([first, other]) == pytest.approx((first.occupancy + 0.5) / 2)
    twice, _ = device_uses(jobs, PackingSpec(oversubscribe={"A100": 2.0}))
    assert twice.occupancy == pytest.approx(first.occupancy / 2), "of what may be given away"
    assert device_uses([], PackingSpec()) == [] and mean_occupancy([]) is None


def test_a_cpu_device_counts_resident_memory_and_a_gpu_its_own() -> None:
    def used(usage: Usage | None) -> list[int]:
        return [
            use.used
            for use in device_uses(
                [Span(trial=0, attempt=0, target=1, start=0, end=1, shared=sharing(usage))], PackingSpec()
            )
        ]

    gpu = Usage(memory=10, device_memory=70, device="d", architecture="A100", share=(100, 80, 1000))
    assert used(gpu) == [70]
    assert used(Usage(memory=10, device="n", architecture="CPU", share=(1, 2, 3))) == [10]
    assert used(Usage(device="n", architecture="CPU")) == [], "it had all of it"
    assert used(None) == []


def test_results_and_failures_of_a_journal_are_found() -> None:
    entries = [decode_entry(line) for line in (FOLDER / "used-format-1.jsonl").read_text().splitlines()]
    found = [on for span in read_series(entries).spans if (on := span.shared) is not None]
    assert {(on.device, on.architecture, on.share and on.share[1]) for on in found} == {
        ("GPU-5d4e", "A100", 6_000_000_000)
    }
    study = Study.create(make_spec())
    first = study.ask()
    assert first is not None
    usage = Usage(memory=5, device="n", architecture="CPU", share=(10, 6, 1))
    outcome = Outcome.OUT_OF_MEMORY
    study.tell_report(Report(trial=first.trial, attempt=0, outcome=outcome, started=3, ended=2, usage=usage))
    series = read_series(study.journal.entries(study.name))
    ended = [span for span in series.spans if span.outcome is not None]
    assert [(span.usage, span.start <= span.end) for span in ended] == [(usage, True)], "its clock ran backwards"
    assert [(use.failed, use.jobs) for use in series.uses] == [(1, 1)]
