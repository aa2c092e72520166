from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.child.processes import children, outcome_of_exit
from hpo_core.training.child.trainer import Trainer
from tests.job_requests import make_request

LIMIT = 300 * 2**20
ENDINGS = """
import os, signal

def train(trial):
    if trial.params["do"] == "takes_memory":
        taken = [b"1" * (32 << 20) for _ in range(64)]
    if trial.params["do"] == "is_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    trial.report(loss=1.0)
"""


@pytest.mark.parametrize(
    ("kills", "outcome", "words"),
    [
        (0, Outcome.CRASHED, "ended no process of this machine for lack of memory"),
        (None, Outcome.CRASHED, "Whether memory ran out cannot be said"),
        (1, Outcome.OUT_OF_MEMORY, "the kernel ended 1 process of this machine for lack of memory"),
    ],
)
def test_sigkill_is_lack_of_memory_only_with_evidence(kills: int | None, outcome: Outcome, words: str) -> None:
    found, message = outcome_of_exit(os.CLD_KILLED, status=signal.SIGKILL, oom_kills=kills)
    assert found is outcome and words in message and "probably" not in message
    assert ("SIGKILL (kill -9)" in message) is (outcome is Outcome.CRASHED)


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with a limit of memory, and without swap."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    first = next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)
    second = next((path for number, _, path in lines if number == "0"), "/")
    top = Path("/sys/fs/cgroup") / (f"memory/{first.strip('/')}" if first is not None else second.strip("/"))
    limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if first else ("memory.max", "memory.swap.max")
    group = top / f"hpo-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limits[0]).write_text(str(LIMIT))
        with contextlib.suppress(OSError):
            (group / limits[1]).write_text(str(LIMIT) if first else "0")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group with a limit of memory can be made here ({error})")
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(OSError):  # a process of it may still be ending
        group.rmdir()


@pytest.mark.parametrize(
    ("do", "outcome", "words"),
    [
        ("takes_memory", Outcome.OUT_OF_MEMORY, "killed while the kernel ended 1 process of this machine"),
        ("is_killed", Outcome.CRASHED, "ended by SIGKILL (kill -9). The kernel ended no process of "),
    ],
)
def test_the_kernels_own_kill_is_told_from_another(
    memory_group: Path, tmp_path: Path, do: str, outcome: Outcome, words: str
) -> None:
    (tmp_path / "endings.py").write_text(ENDINGS)
    objective, place = "endings:train", (str(tmp_path),)
    trainer = Trainer(objective, place)

    def run(do: str, trial: int) -> tuple[Outcome, str]:
        job = Job(trial, 0, Rung(0, 0), 1, {"do": do}, None)
        request = make_request(
            job=job, objective=objective, folder=str(tmp_path), pythonpath=place,
            timeout=600.0, stall_timeout=600.0, grace=0.3,
        )  # fmt: skip
        report = trainer.run(request)
        return report.outcome, report.message

    try:
        assert run("ends", 0)[0] is Outcome.COMPLETED  # the zygote is there now
        while not (ahead := children(trainer.pid)):  # one is forked ahead
            time.sleep(0.001)
        for pid in (trainer.pid, *ahead):
            (memory_group / "cgroup.procs").write_text(str(pid))
        found, message = run(do, 1)
        assert found is outcome and words in message, message
    finally:
        trainer.close()
