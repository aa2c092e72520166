"""Packed studies on a real NVIDIA GPU: several jobs at once, each within its share; who runs out of memory ends alone.

``HPO_TEST_PACKING_ON=cpu`` runs them on the processors, to try the tests themselves where there is no card.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.model.trial import Outcome
from tests.flows.packed_runs import Packed, most_at_once, usage

ON_CPU = os.environ.get("HPO_TEST_PACKING_ON") == "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        not ON_CPU and not torch.cuda.is_available(), reason="needs an NVIDIA GPU that this torch can use"
    ),
]
MB = 1_000_000
SHARE, HELD, MORE = (200 * MB, 60, 300) if ON_CPU else (2_000 * MB, 500, 4_000)
"""Bytes that a job states (CUDA's context is in them), MiB that it holds, MiB that a greedy one takes as well."""
TOLERANCE = 1.1


def packed(folder: Path, greedy: list[int], **packing: Any) -> Packed:
    study = {
        "objective": "tests.gpu.packing_objectives:holds",
        "space": {
            "lr": {"type": "categorical", "choices": [0.01, 0.02, 0.03, 0.04]},
            "greedy": {"type": "categorical", "choices": greedy},
        },
        "constants": {"mib": HELD, "more": MORE},
        "search": {"method": "grid", "max_resource": 4},
        "cluster": {"kind": "local", "workers": 1},
    }
    demand = {"memory": SHARE, "compute": 20} | ({"cores": 0.1} if ON_CPU else {})
    memory = {"memory": {"CPU": "900MB"}} if ON_CPU else {}
    return Packed(folder, **study, packing={"by": ["greedy"], "demand": demand} | memory | packing)


def peak(event: JobCompleted | AttemptFailed) -> int:
    used = usage(event)
    return (used.memory if ON_CPU else used.device_memory) or 0


def test_several_at_once_each_within_its_share(tmp_path: Path) -> None:
    study = packed(tmp_path, [0])
    study.run("tune", "study.yaml")
    events = study.ended()
    assert len(events) == 4 and all(isinstance(event, JobCompleted) for event in events)
    assert most_at_once(events) >= 3
    for event in events:
        assert HELD * 2**20 <= peak(event) <= TOLERANCE * SHARE
        assert ON_CPU or usage(event).compute is not None, "the driver says what it computed"


def test_one_that_runs_out_of_memory_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    study = packed(tmp_path, [0, 1])
    study.run("tune", "study.yaml")
    trials = study.study().state.trials
    failed = [event for event in study.ended() if isinstance(event, AttemptFailed)]
    assert failed and {event.outcome for event in failed} == {Outcome.OUT_OF_MEMORY}
    assert {trials[event.trial].params["greedy"] for event in failed} == {1}, "no neighbour is blamed"
    done = [event for event in study.ended() if isinstance(event, JobCompleted)]
    assert len(done) == 8, "alone, or with a larger share, there is room for the greedy ones"
