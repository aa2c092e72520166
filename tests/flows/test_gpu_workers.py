"""``cluster: {kind: local_cuda}``: each attempt sees the GPU of its worker alone, from the import of its module on.

No card is needed: what a process may see is in its environment, and NVML is the stand-in of ``tests/nvml_stub``.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import hpo_core
from hpo_core.home import Home
from hpo_core.model.events import JobCompleted
from hpo_core.result import Result
from tests.flows.conftest import ROOT
from tests.flows.gpu_objectives import train
from tests.flows.packed_runs import Packed, check_shares, most_at_once, usage
from tests.nvml_stub.cards import GIB, Cards

PCI = "PCI_BUS_ID"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")


def tuned(folder: Path, **more: Any) -> Result:
    """A study of 12 trials whose attempts write to ``folder/seen``."""
    folder.mkdir(exist_ok=True)
    given: dict[str, Any] = {"training": {"process": "fresh"}} | more
    return hpo_core.tune(
        given.pop("objective", train),
        {"x": hpo_core.Float(0.0, 1.0)},
        metric="loss",
        method=given.pop("method", hpo_core.Random(configs=12, max_resource=1)),
        constants={"file": str(folder / "seen"), "seconds": 0.1},
        cluster=hpo_core.LocalCuda(),
        home=folder / "home",
        name="seen",
        prefect="off",
        tracking={"mlflow": "off"},
        progress=False,
        pythonpath=[ROOT],
        **given,
    )


def completed(folder: Path) -> list[JobCompleted]:
    entries = Home(folder / "home").read_journal().entries("seen")
    return [event for entry in entries for event in entry.events if isinstance(event, JobCompleted)]


def check_one_gpu_each(folder: Path) -> None:
    """Each attempt saw one GPU, the same at import and run, and always that of its worker; all were used."""
    seen = {line["trial"]: line for line in lines(folder / "seen")}
    of_worker = defaultdict(set)
    for event in completed(folder):
        line = seen[event.trial]
        assert line["run"] == line["import"] and line["run"][1] == PCI
        of_worker[event.worker].add(line["run"][0])
    assert all(len(gpus) == 1 for gpus in of_worker.values()), of_worker
    assert sorted(gpu for gpus in of_worker.values() for gpu in gpus) == ["0", "3"]


@pytest.mark.parametrize("process", ["fresh", pytest.param("kept", marks=pytest.mark.slow)])
def test_each_attempt_sees_the_gpu_of_its_worker_at_import_and_run(tmp_path: Path, process: str) -> None:
    before = dict(os.environ)
    result = tuned(tmp_path, training={"process": process})
    assert dict(os.environ) == before, "the study's own process sees what it saw"
    assert result.status == "finished" and len(lines(tmp_path / "seen")) == 12
    check_one_gpu_each(tmp_path)
    processes = {line["pid"] for line in lines(tmp_path / "seen")}
    assert len(processes) == 12 if process == "fresh" else len(processes) < 12


@pytest.mark.slow
def test_ranks_of_a_gang_see_a_gpu_each(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    tuned(tmp_path, method=hpo_core.Random(configs=2, max_resource=1), training={"gang": 2, "process": "fresh"})
    gangs = defaultdict(set)
    for line in lines(tmp_path / "seen"):
        assert line["run"] == line["import"] and line["run"][1] == PCI
        gangs[line["trial"]].add(line["run"][0])
    assert list(gangs.values()) == [{"0", "3"}] * 2


@pytest.mark.slow
def test_jobs_share_the_gpus_of_their_workers(
    tmp_path: Path, library: Path, cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zygote sees its worker's GPU by number, the job the same one by its UUID; nobody's memory counts twice."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    packed = Packed(
        tmp_path,
        cards.environment(library),
        objective="tests.flows.gpu_objectives:on_card",
        space={"gb": {"type": "categorical", "choices": [4, 8, 16]}, "x": {"type": "float", "low": 0.0, "high": 1.0}},
        search={"method": "random", "configs": 24, "max_resource": 1},
        constants={"file": str(tmp_path / "seen"), "seconds": 0.8},
        packing={
            "demand": {"function": "tests.flows.packing_objectives:need_of_gb", "compute": 10, "cores": 0.05},
        },
        cluster={"kind": "local_cuda"},
    )
    packed.run("tune", "study.yaml")
    assert packed.study().status == "finished"
    events = packed.ended()
    done = {event.trial: event for event in events if isinstance(event, JobCompleted)}
    seen = {line["trial"]: line for line in lines(tmp_path / "seen")}
    numbers, workers = {"GPU-large": "0", "GPU-small": "1"}, defaultdict(set)
    for trial, event in done.items():
        device = usage(event).device
        assert seen[trial]["import"] == [numbers[device], PCI] and seen[trial]["run"] == [device, PCI]
        workers[device].add(event.worker)
    assert len(done) == 24 and set(workers) == set(numbers)
    assert all(len(addresses) == 1 for addresses in workers.values()), "a GPU has one worker, which alone tells of it"
    check_shares(events, {"GPU-large": 80 * GIB, "GPU-small": 32 * GIB})
    large = [event for event in events if usage(event).device == "GPU-large"]
    assert most_at_once(large) >= 3, "memory of the study's own jobs is not taken for that of others"
