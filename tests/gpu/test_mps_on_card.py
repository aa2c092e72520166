"""On a real NVIDIA GPU with its MPS programs: the driver keeps a process to its share."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from hpo_core.model.devices.inventory import Portion
from hpo_core.placement.gpus import CONTROL
from hpo_core.training.child.child_process import gpu_environment
from tests.mps_daemon import running_daemon

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or shutil.which(CONTROL) is None,
        reason="needs an NVIDIA GPU that this torch can use, and nvidia-cuda-mps-control",
    ),
]
MIB = 1 << 20
TAKE = """
import torch
processors = torch.cuda.get_device_properties(0).multi_processor_count
try:
    torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    print(processors, "given")
except torch.OutOfMemoryError:
    print(processors, "refused")
"""


def test_compute_and_memory_are_limited_by_the_driver(tmp_path):
    properties = torch.cuda.get_device_properties(0)
    with running_daemon(tmp_path, real=True):
        share = Portion(
            device=f"GPU-{properties.uuid}", architecture="any", compute=250, memory=1024 * MIB, cores=1000,
            capacity=properties.total_memory, gpu=True, mps=str(tmp_path),
        )  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", TAKE], env=os.environ | gpu_environment(share), capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    processors, memory = done.stdout.split()
    assert memory == "refused"
    assert int(processors) < properties.multi_processor_count // 2
