from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpo_core import Outcome, Report, Study
from hpo_core.cli.app import app
from hpo_core.home import Home
from hpo_core.journal.codec import decode_entry
from hpo_core.journal.sql import current_owner
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import Entry, JobPlaced
from hpo_core.report.trials_table import embedded_trials
from hpo_core.spec.packing import PackingSpec
from hpo_core.views.device_use import (
    Span,
    device_lines,
    device_uses,
    granted_words,
    mean_occupancy,
    running_lines,
    sharing,
)
from hpo_core.views.series import read_series
from hpo_core.views.states import trial_story
from tests.conftest import make_spec
from tests.golden.make import FOLDER
from tests.report.packed_study import packed_study


def job(
    begin: float, end: float, *, device: str = "gpu-0", compute: int = 500, failed: bool = False
) -> tuple[Span, Usage]:
    usage = Usage(memory=9, device_memory=3, device=device, architecture="A100", share=(compute, 4, 1000))
    outcome = Outcome.ERROR if failed else Outcome.COMPLETED
    return Span(trial=0, attempt=0, target=1, start=begin, end=end, outcome=outcome), usage


def test_jobs_at_once_are_summed_and_means_are_over_time() -> None:
    jobs = [job(0, 6), job(2, 4), job(4, 6, failed=True), job(8, 10, compute=1000), job(0, 10, device="z")]
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
        on, span = sharing(usage), Span(trial=0, attempt=0, target=1, start=0, end=1)
        return [use.used for use in device_uses([] if on is None else [(span, on)], PackingSpec())]

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


def packed(granted: int) -> Study:
    study = Study.create(make_spec(search={"method": "random", "configs": 20}, packing={}))
    study.set_capacity(granted)
    return study


def test_those_that_wait_are_counted_apart() -> None:
    study = packed(9)
    assert granted_words(study) == "0 running, 9 waiting for a device", "none is known to be on a device"
    share = (250, 6 * 10**9, 1000)
    study.note_placements([JobPlaced(job, 0, f"GPU-{job % 2}", "A100", share=share, began=1.0) for job in range(4)])
    assert granted_words(study) == "4 running, 5 waiting for a device"
    first, second, waiting = running_lines(study)
    assert first == (
        "running on GPU-0 (A100; 12 GB and 50% of compute claimed): trial 0 to 1 (6 GB), trial 2 to 1 (6 GB)"
    )
    assert second.startswith("running on GPU-1") and waiting.startswith("waiting for a device: trial 4 to 1, trial 5")
    assert running_lines(study, devices=1, jobs=1) == [
        "running on GPU-0 (A100; 12 GB and 50% of compute claimed): trial 0 to 1 (6 GB) and 1 more",
        "and on 1 device more",
        "waiting for a device: trial 4 to 1 and 4 more",
    ]
    plain = Study.create(make_spec(search={"method": "random", "configs": 20}))
    plain.set_capacity(2)
    assert granted_words(plain) == "2 running"


def test_show_and_status_say_what_devices_did(tmp_path: Path) -> None:
    entries = packed_study({"method": "grid"}, devices=("A100", "H100"), reports=4, failures=0, waiting=1)
    study, journal = Study.from_entries(entries), Home(tmp_path).open_journal()
    journal.create("packed-gpus", entries[0])
    for entry in entries[1:]:
        journal.append("packed-gpus", entry)
    journal.claim("packed-gpus", current_owner())
    show, status = (
        CliRunner().invoke(app, [c, "packed-gpus", "--home", str(tmp_path)]).output for c in ("show", "status")
    )
    assert "packing: fill, oversubscribe A100 1.5" in show
    assert show.count("device: GPU-") == 2 and " at once" in show
    assert status.splitlines()[0].endswith("4 jobs done, 7 running, 1 waiting for a device"), status
    running = [line for line in status.splitlines() if line.startswith("running on GPU-")]
    assert sum(line.count("trial ") for line in running) == 7 and "GB)" in running[0]
    assert "waiting for a device: trial 11 to 1" in status
    assert show.count("\nrunning: trial ") == show.count("attempt 0) on GPU-") == 7
    assert "waiting for a device: trial 11 to 1 (rung 0, attempt 0)" in show
    assert trial_story(study, 11)[-1] == "now waiting for a device"
    assert re.fullmatch(r"now running on GPU-\S+, with [\d.]+ GB of its memory", trial_story(study, 10)[-1])
    plain = json.loads(CliRunner().invoke(app, ["show", "packed-gpus", "--json", "--home", str(tmp_path)]).output)
    assert [("device" in job, "memory" in job) for job in plain["running"]] == [(True, True)] * 7 + [(False, False)]
    assert len(device_lines(read_series(entries).uses, most=1)) == 2 and "and 1 device more" in device_lines(
        read_series(entries).uses, most=1
    )


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return [decode_entry(line) for line in (FOLDER / "used-format-1.jsonl").read_text().splitlines()]


def test_story_says_what_each_attempt_used(entries: list[Entry]) -> None:
    study = Study.from_entries(entries)
    (reached,) = [line for line in trial_story(study, 4) if line.startswith("reached")]
    assert reached.endswith(
        "; used 194 MB, 0.875 cores, start-up 0.25 s, 0.5 s per unit; of GPU-5d4e (A100) 3.89 GB, 28 % of its compute; "
        "given 30 %, 6 GB, 2 cores of GPU-5d4e (A100)"
    )
    failures = [line for line in trial_story(study, 9) if "failed" in line or "was lost" in line]
    lost, error = failures
    assert "used" not in lost and "; used 1" in error  # a lost attempt measured nothing


def test_report_has_columns_for_it_only_where_something_was_measured(entries: list[Entry]) -> None:
    data = embedded_trials(read_series(entries))
    columns = data["columns"]
    at = columns.index("memory MB")
    assert columns[at : at + 3] == ["memory MB", "cores", "seconds per unit"]
    assert columns[at - 1] == "seconds" and len(columns) - data["params"] == at + 3
    assert {tuple(row[at + 1 : at + 3]) for row in data["rows"]} == {(0.875, 0.5)}
    assert all(100 <= row[at] <= 200 for row in data["rows"])
    assert all(len(row) == len(columns) for row in data["rows"])
    assert any("GPU-5d4e" in attempt[-1] for found in data["details"].values() for attempt in found["attempts"])
    older = [decode_entry(line) for line in (FOLDER / "asha-shared-format-1.jsonl").read_text().splitlines()]
    plain = embedded_trials(read_series(older))
    assert plain is not None and "cores" not in plain["columns"]
