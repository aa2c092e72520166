from __future__ import annotations

from typing import Any

import pytest

from hpo_core.model.devices.inventory import Portion
from hpo_core.training.child.child_process import gpu_environment

GIB = 2**30
PIPES = "/tmp/mps/GPU-a/pipe"


def environment(**changes: Any) -> dict[str, str]:
    given = {"device": "GPU-a", "architecture": "A100", "compute": 333, "memory": 6 * GIB, "cores": 1000}
    return gpu_environment(Portion(**given | {"capacity": 70 * GIB, "gpu": True, "mps": PIPES} | changes))


def test_mps_keeps_a_job_to_its_share() -> None:
    assert environment() == {
        "CUDA_VISIBLE_DEVICES": "GPU-a",
        "CUDA_MPS_PIPE_DIRECTORY": PIPES,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "34",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6144M",
    }


@pytest.mark.parametrize(("compute", "percent"), [(1, "6"), (60, "6"), (61, "7"), (1000, "100"), (3000, "100")])
def test_compute_is_rounded_up_to_a_percent_from_six_on(compute: int, percent: str) -> None:
    assert environment(compute=compute)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == percent


def test_alone_it_has_the_daemon_and_no_limit() -> None:
    assert environment(alone=True) == {"CUDA_VISIBLE_DEVICES": "GPU-a", "CUDA_MPS_PIPE_DIRECTORY": PIPES}


def test_without_mps_only_the_device_is_said() -> None:
    assert environment(mps="") == {"CUDA_VISIBLE_DEVICES": "GPU-a"}
