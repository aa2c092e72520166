"""Jobs that share devices, on real Dask workers and in real processes: this computer's memory, and stand-in GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.model.trial import Outcome
from tests.flows.packed_runs import (
    LIMIT,
    MB,
    Judge,
    Packed,
    check_shares,
    measured,
    most_at_once,
    resident,
    until,
    usage,
)
from tests.nvml_stub.cards import GIB, Cards

pytestmark = pytest.mark.slow
GRID = {
    "objective": "tests.flows.packing_objectives:on_processors",
    "space": {
        "mb": {"type": "categorical", "choices": [30, 60, 110, 160]},
        "x": {"type": "categorical", "choices": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]},
    },
    "search": {"method": "grid", "max_resource": 8},
}
CAPACITY = 700 * MB


def test_a_grid_on_processors_stays_within_its_memory_and_is_done_sooner(tmp_path: Path) -> None:
    packing = {"memory": {"CPU": CAPACITY}, "by": ["mb"], "demand": {"compute": 5, "cores": 0.05}}
    packed = Packed(tmp_path, **GRID, packing=packing)
    process = packed.start("tune", "study.yaml")
    with Judge(lambda: {"memory": resident(process.pid)}) as judge:
        said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    events, params = packed.ended(), [trial.params for trial in packed.study().state.trials]
    done = [event for event in events if isinstance(event, JobCompleted)]
    assert len(done) == len({event.trial for event in done}) == 24
    failed = {(params[event.trial]["mb"], event.outcome) for event in events if isinstance(event, AttemptFailed)}
    assert not failed, "each fits into a quarter of the memory, which a job gets that was never measured"
    check_shares(events, {usage(events[0]).device: CAPACITY})
    assert judge.looks >= 20 and judge.most["memory"] <= CAPACITY, (judge.looks, judge.most)
    for event in done:
        wanted = params[event.trial]["mb"] * MB
        assert wanted <= usage(event).memory <= wanted + 40 * MB
    alone = sum(event.ended - event.started for event in events)
    together = max(event.ended for event in events) - min(event.started for event in events)
    assert most_at_once(events) >= 4 and together < alone / 2, (together, alone)
    known = packed.run("history")
    assert "mb=160" in known and "packed" in known


def test_one_that_takes_more_than_it_says_is_tried_alone_and_its_neighbours_go_on(tmp_path: Path) -> None:
    study = GRID | {
        "space": {
            "mb": {"type": "categorical", "choices": [30, 300]},
            "x": {"type": "categorical", "choices": [0.0, 0.1]},
        },
        "search": {"method": "grid", "max_resource": 3},
    }
    packing = {"memory": {"CPU": CAPACITY}, "demand": {"memory": "60MB", "compute": 5, "cores": 0.05}}
    packed = Packed(tmp_path, **study, packing=packing)
    packed.run("tune", "study.yaml")
    found = packed.study()
    failed = [event for event in packed.ended() if isinstance(event, AttemptFailed)]
    assert failed and {event.outcome for event in failed} == {Outcome.OUT_OF_MEMORY}
    assert {found.state.trials[event.trial].params["mb"] for event in failed} == {300}, "no neighbour is blamed"
    done = [event for event in packed.ended() if isinstance(event, JobCompleted)]
    assert len(done) == 4, "alone there is room for it"
    for event in done:
        if found.state.trials[event.trial].params["mb"] == 300:
            share = usage(event).share
            assert share is not None and (share[0] == 1000 or share[1] >= 300 * MB)


GPU_STUDY = {
    "objective": "tests.flows.packing_objectives:on_card",
    "space": {"gb": {"type": "categorical", "choices": [4, 8, 16]}, "x": {"type": "float", "low": 0.0, "high": 1.0}},
    "search": {"method": "asha", "configs": 30, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
}


def test_two_cards_of_different_size_one_is_lost_and_another_joins(tmp_path: Path, library: Path, cards: Cards) -> None:
    packed = Packed(
        tmp_path, cards.environment(library), **GPU_STUDY, packing={"demand": {"compute": 10, "cores": 0.05}}
    )
    process = packed.start("tune", "study.yaml")
    until(lambda: len(packed.ended()) >= 8, process)
    cards.put("GPU-small", name="Tesla V100-PCIE-32GB", memory=32 * GIB, state="lost")
    cards.put("GPU-new", memory=80 * GIB)
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    assert packed.study().status == "finished"
    events = packed.ended()
    by_device = {name: [event for event in events if usage(event).device == name] for name in ("GPU-large", "GPU-new")}
    assert all(by_device.values()), "both cards that were there at the end trained"
    assert most_at_once(by_device["GPU-large"]) >= 3
    check_shares(events, {"GPU-large": 80 * GIB, "GPU-small": 32 * GIB, "GPU-new": 80 * GIB})
    done = [event for event in events if isinstance(event, JobCompleted) and usage(event).device != "GPU-small"]
    assert measured(done) == {4 * 10**9, 8 * 10**9, 16 * 10**9}
    assert {usage(event).architecture for event in events} >= {"A100"}


def test_jobs_go_through_the_mps_daemon_that_runs_and_without_one_a_sentence_says_so(
    tmp_path: Path, library: Path, cards: Cards
) -> None:
    cards.share_through_mps()
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    environment = cards.environment(library) | {"MPS_STUB": str(pipes)}
    study = GPU_STUDY | {"objective": "tests.flows.packing_objectives:on_shared_card"}
    packing = {
        "demand": {"function": "tests.flows.packing_objectives:need_of_gb", "compute": 10, "cores": 0.05},
        "mps": "auto",
    }
    packed = Packed(tmp_path, environment | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}, **study, packing=packing)
    assert "MPS" not in packed.run("tune", "study.yaml").replace("MPS_", "")
    children = [json.loads(path.read_text()) for path in pipes.glob("child-*")]
    for found in children:
        assert found["CUDA_MPS_PIPE_DIRECTORY"] == str(pipes)
        assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"
        assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] in {f"0={int(1.1e9 * gb) // 2**20}M" for gb in (4, 8, 16)}
    assert len(children) == len(packed.ended())
    assert measured(packed.ended()) <= {4 * 10**9, 8 * 10**9, 16 * 10**9}
    (tmp_path / "off").mkdir()
    packed = Packed(tmp_path / "off", environment, **study, packing=packing)
    said = " ".join(packed.run("tune", "study.yaml").split())
    assert said.count("MPS is off for GPU-large") == 1 and "nvidia-cuda-mps-control -d" in said
    assert packed.study().status == "finished"
