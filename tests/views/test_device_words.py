"""Shared devices in the terminal: who runs, who waits, what each device did."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from hpo_core import Study
from hpo_core.cli.app import app
from hpo_core.home import Home
from hpo_core.journal.sql import current_owner
from hpo_core.model.events import JobPlaced
from hpo_core.report.series import read_series
from hpo_core.views.device_use import device_lines, granted_words, running_lines
from hpo_core.views.states import trial_story
from tests.conftest import make_spec
from tests.report.packed_study import packed_study


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
