"""Two packed studies in one pool on a real NVIDIA GPU: they take turns, and never have jobs on the card at once.

``HPO_TEST_PACKING_ON=cpu`` runs them on the processors, to try the test itself where there is no card.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.pool.store import pools_of
from hpo_core.replay.audit import audit
from tests.flows.packed_runs import most_at_once

ON_CPU = os.environ.get("HPO_TEST_PACKING_ON") == "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        not ON_CPU and not torch.cuda.is_available(), reason="needs an NVIDIA GPU that this torch can use"
    ),
]
ROOT = Path(__file__).parents[2]
LIMIT = 900
JOBS = 20
MB = 1_000_000
SHARE, HELD = (200 * MB, 60) if ON_CPU else (2_000 * MB, 500)
"""Bytes that a job states (CUDA's context is in them), MiB that it holds."""
TOLERANCE = 1.1


def described(name: str) -> dict[str, Any]:
    demand = {"memory": SHARE, "compute": 20} | ({"cores": 0.1} if ON_CPU else {})
    devices = {"devices": "cpu", "memory": {"CPU": "900MB"}} if ON_CPU else {"devices": "gpu"}
    return {
        "study": name,
        "pythonpath": [str(ROOT)],
        "objective": "tests.gpu.packing_objectives:holds",
        "metric": {"name": "loss"},
        "space": {"lr": {"type": "float", "low": 0.001, "high": 0.01}},
        "constants": {"mib": HELD, "more": 0, "greedy": 0},
        "search": {"method": "random", "configs": JOBS, "max_resource": 3},
        "cluster": {"kind": "local", "workers": 1},
        "packing": {"demand": demand} | devices,
        "share": {"pool": "card"},
        "prefect": "off",
        "tracking": {"mlflow": "off"},
    }


def start(folder: Path, name: str) -> subprocess.Popen[str]:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(described(name)))
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "hpo_flows", "tune", f"{name}.yaml"], cwd=folder, text=True,
            env=os.environ | {"HPO_HOME": str(folder / "home"), "HOME": str(folder)}, stdout=log, stderr=log,
        )  # fmt: skip


def usage(event: JobCompleted | AttemptFailed) -> Usage:
    assert isinstance(event.usage, Usage), event
    return event.usage


def test_two_packed_studies_take_turns_on_one_device(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home"))
    journal = home.open_journal()
    began = time.monotonic()
    processes = {name: start(tmp_path, name) for name in "ab"}
    together = 0
    """Looks at which both studies were in the pool."""
    try:
        while any(process.poll() is None for process in processes.values()):
            assert time.monotonic() < began + LIMIT
            members = [row for row in pools_of(journal).all() if row.member is not None]
            held = [device for row in members for device in row.grant.held]
            assert len(held) == len(set(held)) <= 1, held
            together += len(members) == 2
            time.sleep(0.25)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    for name, process in processes.items():
        assert process.returncode == 0, (tmp_path / f"{name}.log").read_text()[-3000:]
    assert together > 4

    events: dict[str, list[JobCompleted | AttemptFailed]] = {}
    for name in "ab":
        assert audit(journal.entries(name)).clean
        assert Study.open(name, journal, reading=True).status == "finished"
        ended = [event for entry in journal.entries(name) for event in entry.events
                 if isinstance(event, JobCompleted | AttemptFailed)]  # fmt: skip
        begun = [event for event in ended if event.started]
        events[name] = begun
        done = [event for event in begun if isinstance(event, JobCompleted)]
        assert len(done) == JOBS and most_at_once(begun) >= 3, "its own jobs share the device"
        for event in done:
            peak = usage(event).memory if ON_CPU else usage(event).device_memory
            assert (peak or 0) <= TOLERANCE * SHARE
    assert len({usage(event).device for ended in events.values() for event in ended}) == 1, "one device is there"
    for one in events["a"]:
        for other in events["b"]:
            assert one.ended <= other.started or other.ended <= one.started, (one, other)
    order = sorted((event.started, name) for name, ended in events.items() for event in ended)
    turns = [name for place, (_, name) in enumerate(order) if not place or order[place - 1][1] != name]
    print(f"\nturns: {' '.join(turns)}; {time.monotonic() - began:.0f} s in all; at once: "
          f"{', '.join(f'{name} {most_at_once(ended)}' for name, ended in events.items())}")  # fmt: skip
    journal.close()
