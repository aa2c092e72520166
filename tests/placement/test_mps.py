"""MPS daemons: real processes and signals; only NVIDIA's program is a stand-in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core.placement.mps import CONTROL, MpsDaemons
from tests.mps_stub.daemons import LIMIT, MpsStub, lives, until


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsStub]:
    """The program is on this process's PATH."""
    stub = MpsStub(tmp_path)
    for name, value in stub.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    yield stub
    stub.close()


def daemons(stub: MpsStub) -> MpsDaemons:
    return MpsDaemons(by_hand=stub.record / "default")


def test_each_gpu_has_one_daemon_for_all_jobs_of_the_process_which_is_ended_with_it(stub: MpsStub) -> None:
    users = daemons(stub)
    assert users.prepare(["GPU-a", "GPU-b"]) == ""
    assert users.pipes("GPU-a") == users.pipes("GPU-a") != users.pipes("GPU-b")
    assert sorted(gpu for _, gpu in stub.calls("start")) == ["GPU-a", "GPU-b"]
    assert Path(users.pipes("GPU-a")).stat().st_mode & 0o777 == 0o700
    folder = Path(users.pipes("GPU-a")).parents[1]
    users.close()
    assert not stub.living() and len(stub.calls("end")) == 2 and not folder.exists()


def test_a_daemon_that_died_is_replaced(stub: MpsStub) -> None:
    users = daemons(stub)
    assert users.pipes("GPU-a")
    (first,) = stub.living()
    os.kill(first, signal.SIGKILL)
    until(lambda: not stub.living(), "it died")
    assert users.pipes("GPU-a") and stub.living() != [first]
    users.close()


def test_kill_9_of_the_worker_ends_its_daemon(stub: MpsStub) -> None:
    code = (
        "from pathlib import Path\nfrom hpo_core.placement.mps import MpsDaemons\nimport time\n"
        "print(MpsDaemons(by_hand=Path('/nonexistent')).pipes('GPU-a'), flush=True)\ntime.sleep(10_000)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None and worker.stdout.readline().strip().endswith("/pipe")
    (pid,) = stub.living()
    worker.kill()
    worker.wait(LIMIT)
    until(lambda: not lives(pid), "the kernel ends it")


def test_a_daemon_that_cannot_start_is_off_with_its_own_words(stub: MpsStub) -> None:
    stub.behave("fail")
    users = daemons(stub)
    for _ in range(2):  # the second time from memory
        said = users.prepare(["GPU-a", "MIG-1", "MIG-2"]).split("; ")
        assert said[0].startswith("MPS is off for GPU-a: ") and "insufficient permission" in said[0]
        assert said[1].startswith("MPS is off for MIG-1, MIG-2: only whole")
    assert len(stub.calls("start")) == 1 and users.pipes("GPU-a") == ""
    users.close()


@pytest.mark.parametrize("device", ["MIG-1c", "cpu:host", "GPU-../../etc", "GPU-a/b", ""])
def test_slices_and_names_that_lead_elsewhere_have_none(stub: MpsStub, device: str) -> None:
    assert "only whole GPUs" in daemons(stub).prepare([device])


def test_off_without_the_program(stub: MpsStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(stub.record))
    assert "nvidia-cuda-mps-control is not on PATH" in daemons(stub).prepare(["GPU-a"])


def test_a_daemon_started_by_hand_is_used_and_left_alone(stub: MpsStub, monkeypatch: pytest.MonkeyPatch) -> None:
    pipes = stub.record / "default"
    pipes.mkdir()
    by_hand = subprocess.Popen([CONTROL, "-f"], env=stub.environment() | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)})
    try:
        until(lambda: (pipes / "nvidia-cuda-mps-control.pid").exists(), "it runs")
        users = daemons(stub)
        assert users.pipes("GPU-a") == str(pipes)
        users.close()
        assert by_hand.poll() is None
    finally:
        by_hand.kill()
        by_hand.wait(LIMIT)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/given")
    assert daemons(stub).pipes("GPU-a") == "/given"
