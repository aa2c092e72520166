"""A control daemon of MPS in a folder: NVIDIA's own, or a process of its name that does nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hpo_core.placement.gpus import CONTROL
from tests.waiting import eventually


@contextlib.contextmanager
def running_daemon(folder: Path, *, real: bool = False) -> Iterator[None]:
    pid_file = folder / f"{CONTROL}.pid"
    if real:
        program = [CONTROL, "-f"]
    else:
        shutil.copy(shutil.which("sleep") or "/bin/sleep", folder / CONTROL)
        program = [str(folder / CONTROL), "1000"]
    daemon = subprocess.Popen(program, env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(folder)})
    try:
        if not real:
            pid_file.write_text(str(daemon.pid))
        assert eventually(lambda: pid_file.exists() and Path(f"/proc/{daemon.pid}/comm").read_text().startswith("nv"))
        yield
    finally:
        daemon.kill()
        daemon.wait(600)
