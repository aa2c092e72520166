"""NVIDIA's Multi-Process Service (MPS): the control daemon that a person started on this computer."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")
"""Where CUDA looks for a daemon if nobody says where."""
_GPU = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")


def pipes_for(gpu: str, default: Path = DEFAULT_PIPES) -> str:
    """Folder of the daemon's pipes, for ``CUDA_MPS_PIPE_DIRECTORY``; empty where none runs, and for slices (MIG)."""
    if not _GPU.fullmatch(gpu):
        return ""
    if given := os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        return given
    with contextlib.suppress(OSError, ValueError):
        pid = int((default / f"{CONTROL}.pid").read_text())
        if Path(f"/proc/{pid}/comm").read_text().startswith(CONTROL[:15]):
            return str(default)
    return ""


def why_off(gpus: Iterable[str], default: Path = DEFAULT_PIPES) -> str:
    """Names the GPUs whose jobs cannot use MPS, and the cure; empty: all can."""
    without = [gpu for gpu in gpus if not pipes_for(gpu, default)]
    if not without:
        return ""
    return (
        f"MPS is off for {', '.join(without)}: no daemon runs there, or it is a slice (MIG). Start a daemon on each "
        f"computer with {CONTROL} -d."
    )
