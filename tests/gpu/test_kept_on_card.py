"""On a real NVIDIA GPU: a process that stays has its context, gives the bits of a fresh one, and holds little."""

import contextlib
import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.placement.gpus import CONTROL
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.worker import TrainerPool
from tests.gpu import test_cuda
from tests.gpu.test_cuda import HERE, MIB, OBJECTIVE, SLACK
from tests.job_requests import make_request
from tests.mps_daemon import running_daemon
from tests.waiting import eventually

used = test_cuda.used
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that this torch can use"),
]


class Kept:
    """Attempts of one trainer, or of a pool of them."""

    def __init__(self, trainer: Trainer | TrainerPool, folder: Path) -> None:
        self.trainer = trainer
        self.folder = folder
        self.attempts = 0

    def run(self, do, *, process="kept", target=1, checkpoint=None, share=None, threads=None, **params):
        self.attempts += 1
        job = Job(0, self.attempts, Rung(0, 0), target, {"do": do, **params}, checkpoint)
        request = make_request(
            study="s", job=job, objective=OBJECTIVE, metric="loss", seed=3, folder=str(self.folder),
            pythonpath=(HERE,), timeout=300.0, grace=5.0, portion=share, process=process, threads=threads,
        )  # fmt: skip
        report = self.trainer.run(request)
        assert report.outcome == Outcome.COMPLETED, f"{report.message}\n{report.detail}"
        return report

    @property
    def waiting(self):
        return 0 if self.trainer.waiting is None else self.trainer.waiting.pid


@pytest.fixture
def kept(tmp_path):
    with contextlib.closing(Trainer(OBJECTIVE, (HERE,))) as trainer:
        trainer.prepare()
        yield Kept(trainer, tmp_path)


def share(**changes):
    properties = torch.cuda.get_device_properties(0)
    whole = Portion(
        device=f"GPU-{properties.uuid}", architecture="any", compute=500, memory=2048 * MIB, cores=1000,
        capacity=properties.total_memory, gpu=True,
    )  # fmt: skip
    return msgspec.structs.replace(whole, **changes)


def test_the_second_attempt_finds_the_context_that_the_first_one_made(kept):
    first, second = (kept.run("process").metrics for _ in range(2))
    assert (first["ready"], second["ready"]) == (0.0, 1.0)
    assert first["pid"] == second["pid"] == kept.waiting


@pytest.mark.parametrize(
    ("do", "params"), [("network", {}), ("network", {"half": True}), ("network", {"workers": 2}), ("late", {})]
)
def test_attempts_of_a_process_that_stays_have_the_bits_of_fresh_ones(kept, do, params):
    def trained(process):
        reports = []
        for target in (1, 3, 4):
            checkpoint = reports[-1].checkpoint if reports else None
            reports.append(kept.run(do, process=process, target=target, checkpoint=checkpoint, **params))
        return [(report.metrics, report.checkpoint.digest) for report in reports]

    fresh = trained("fresh")
    kept.run("process")
    process = kept.waiting
    assert trained("kept") == fresh
    assert kept.waiting == process


def test_memory_of_the_gpu_that_is_left_ends_the_process(kept, used):
    before = used()
    kept.run("leaves")
    assert not kept.waiting
    eventually(lambda: used() < before + SLACK, 15)


def test_a_process_that_stays_keeps_to_the_share_of_each_attempt(kept):
    """The share counts for torch's allocator; it may be another one for the next attempt."""
    found = [kept.run("process", share=share(memory=gib * 1024 * MIB), mib=3072).metrics for gib in (8, 2, 8)]
    assert len({each["pid"] for each in found}) == 1
    assert [each["taken"] for each in found] == [1.0, 0.0, 1.0]


@pytest.mark.skipif(shutil.which(CONTROL) is None, reason="needs an NVIDIA GPU with nvidia-cuda-mps-control")
def test_a_client_of_mps_stays_while_its_part_of_the_gpu_is_the_same(kept, tmp_path):
    pipes = str(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.enter_context(running_daemon(tmp_path, real=True))
        stack.callback(kept.trainer.close)
        small, large = (
            share(memory=1024 * MIB, compute=250, mps=pipes),
            share(memory=4096 * MIB, compute=500, mps=pipes),
        )
        found = [kept.run("process", share=part, mib=2048).metrics for part in (small, small, large, large)]
    pids = [each["pid"] for each in found]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert [each["taken"] for each in found] == [0.0, 0.0, 1.0, 1.0]
    assert found[0]["processors"] == found[1]["processors"] < found[2]["processors"]
