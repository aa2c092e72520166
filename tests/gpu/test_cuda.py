"""On a real NVIDIA GPU: the same bits over processes, forks that can use CUDA, memory that comes back."""

import contextlib
import dataclasses
import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest
import torch

from hpo_core.checkpoints import files as checkpoints
from hpo_core.model.devices.inventory import Portion
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.child.trainer import Trainer
from tests.job_requests import make_request
from tests.waiting import eventually

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that this torch can use"),
]
HERE = str(Path(__file__).parent)
OBJECTIVE = "cuda_objectives:dispatch"
MIB = 1 << 20
SLACK = 64 * MIB


def objectives():
    """The module of the training functions: it asks for deterministic algorithms, which imports TorchInductor."""
    from tests.gpu import cuda_objectives

    torch.use_deterministic_algorithms(False)  # here that would be in every test
    return cuda_objectives


@dataclasses.dataclass
class Bench:
    trainer: Trainer
    folder: Path

    def run(self, do, *, trial=0, attempt=0, rung=0, target=1, checkpoint=None, seed=3, share=None, **params):
        job = Job(trial, attempt, Rung(0, rung), target, {"do": do, **params}, checkpoint)
        request = make_request(
            study="s",
            job=job,
            objective=OBJECTIVE,
            metric="loss",
            seed=seed,
            folder=str(self.folder),
            pythonpath=(HERE,),
            timeout=120.0,
            grace=5.0,
            portion=share,
        )
        return self.trainer.run(request)

    def completed(self, do, **options):
        report = self.run(do, **options)
        assert report.outcome == Outcome.COMPLETED, f"{report.message}\n{report.detail}"
        return report

    def over_processes(self, do, targets, **options):
        """One process per target; the last one's report."""
        report = None
        for rung, target in enumerate(targets):
            report = self.completed(
                do, rung=rung, target=target, checkpoint=report.checkpoint if report else None, **options
            )
        return report

    def in_background(self, do, **options):
        """The thread that runs it, and the list its report will be in."""
        reports = []
        thread = threading.Thread(target=lambda: reports.append(self.run(do, **options)))
        thread.start()
        return thread, reports


@pytest.fixture(scope="module")
def shared_trainer():
    trainer = Trainer(OBJECTIVE, (HERE,))
    yield trainer
    trainer.close()


@pytest.fixture
def bench(shared_trainer, tmp_path):
    return Bench(shared_trainer, tmp_path)


@pytest.fixture(scope="module")
def used():
    """Memory in use on the GPU that CUDA calls 0, of all processes, in bytes."""
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py to ask for the GPU's memory")
    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    by_name = not visible.isdigit()
    device = pynvml.nvmlDeviceGetHandleByUUID(visible) if by_name else pynvml.nvmlDeviceGetHandleByIndex(int(visible))
    yield lambda: pynvml.nvmlDeviceGetMemoryInfo(device).used
    pynvml.nvmlShutdown()


def differing(bench, one, other):
    """What of two reports' checkpoints differs: names of tensors, and all else that is saved."""
    names, plain = [], []

    def walk(path, a, b):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if objectives().unlike({path: a}, {path: b}):
                names.append(path)
        elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            for key in a:
                walk(f"{path}/{key}", a[key], b[key])
        elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                walk(f"{path}/{i}", x, y)
        elif repr(a) != repr(b):
            plain.append(path)

    ones, others = (checkpoints.load(bench.folder, report.checkpoint) for report in (one, other))
    assert ones.pop("trial") != others.pop("trial")
    walk("", ones, others)
    return names + plain


@pytest.mark.parametrize(
    "params", [{}, {"half": True}, {"workers": 2}], ids=["float32", "float16 with a scaler", "loader processes"]
)
def test_the_same_bits_in_one_go_and_over_three_processes(bench, params):
    whole = bench.completed("network", trial=1, target=9, **params)
    part = bench.over_processes("network", (1, 3, 9), trial=2, **params)
    assert part.metrics == whole.metrics
    assert differing(bench, whole, part) == []
    state = checkpoints.load(bench.folder, whole.checkpoint)
    assert len(state["random"]["cuda"]) == torch.cuda.device_count()
    if params.get("half"):
        assert whole.metrics["scale"] > 256.0  # the scaler's own state went along, too


def test_the_zygote_stays_off_the_gpu_and_each_child_can_use_it(tmp_path, used):
    before = used()
    with contextlib.closing(Trainer(OBJECTIVE, (HERE,))) as trainer:
        trainer.prepare()
        assert used() < before + SLACK  # a context takes hundreds of MiB
        reports = [Bench(trainer, tmp_path).completed("first_touch", trial=trial) for trial in range(3)]
        for report in reports:
            assert report.metrics["loss"] == 8.0
            assert (report.metrics["initialized"], report.metrics["chosen"]) == (0.0, 1.0)
        assert len({report.metrics["zygote"] for report in reports}) == 1
        eventually(lambda: used() < before + SLACK, 15)


@pytest.mark.parametrize(
    "touch",
    [
        "torch.zeros(1, device='cuda')",
        "torch.cuda.get_device_name()",
        # torch itself does not notice these
        "torch.Generator('cuda')",
        "torch.optim.Adam(torch.nn.Linear(2, 2).parameters()).step()",
    ],
)
def test_an_objective_that_touches_the_gpu_at_import_is_refused(tmp_path, touch):
    (tmp_path / "mine.py").write_text(f"import torch\nX = {touch}\ndef train(trial): trial.report(loss=0)\n")
    told = "module 'mine' used CUDA while it was imported.*training function"
    with contextlib.closing(Trainer("mine:train", (str(tmp_path),))) as mine, pytest.raises(ObjectiveError, match=told):
        mine.prepare()


def test_out_of_memory_is_named_and_the_worker_goes_on(bench, used):
    zygote = bench.completed("first_touch").metrics["zygote"]
    before = used()
    report = bench.run("out_of_memory", trial=1)
    assert (report.outcome, report.checkpoint, report.metrics) == (Outcome.OUT_OF_MEMORY, None, {})
    assert "out of memory" in report.message
    eventually(lambda: used() < before + SLACK, 15)
    after = bench.completed("first_touch", trial=2)
    assert after.metrics["zygote"] == zygote


def test_an_attempt_tells_what_it_used_of_its_gpu_and_stays_within_its_share(bench):
    properties = torch.cuda.get_device_properties(0)
    share = Portion(
        device=f"GPU-{properties.uuid}", architecture="any", compute=500, memory=2048 * MIB, cores=1000,
        capacity=properties.total_memory, gpu=True,
    )  # fmt: skip
    within = bench.run("keeps_busy", trial=7, share=share, mib=1024)
    assert within.outcome is Outcome.COMPLETED, within.message
    assert within.metrics["devices"] == 1
    assert 1024 * MIB <= within.usage.device_memory < 2048 * MIB
    assert within.usage.compute is None or within.usage.compute > 0.3  # None in containers and on slices
    beyond = bench.run("keeps_busy", trial=8, share=share, mib=3072)
    assert beyond.outcome is Outcome.OUT_OF_MEMORY
    assert "it may use 2,147 MB of GPU-" in beyond.message
    alone = bench.run("keeps_busy", trial=9, share=msgspec.structs.replace(share, alone=True), mib=3072)
    assert alone.outcome is Outcome.COMPLETED, alone.message


@pytest.mark.parametrize(
    ("end", "outcome"),
    [("cancel", Outcome.PREEMPTED), ("SIGKILL", Outcome.OUT_OF_MEMORY), ("close", Outcome.PREEMPTED)],
)
def test_memory_comes_back_however_a_child_ends(tmp_path, used, end, outcome):
    with contextlib.closing(Trainer(OBJECTIVE, (HERE,))) as trainer:
        bench = Bench(trainer, tmp_path)
        trainer.prepare()
        before = used()
        thread, reports = bench.in_background("holds", trial=4)
        note = tmp_path / "scratch/trial-00004/pid"
        eventually(lambda: note.exists() or reports, 60)
        assert not reports
        assert used() > before + 1024 * MIB
        if end == "cancel":
            trainer.cancel(4, 0)
        elif end == "SIGKILL":
            os.kill(int(note.read_text()), signal.SIGKILL)
        else:
            trainer.close()
        thread.join(30)
        assert [report.outcome for report in reports] == [outcome]
        eventually(lambda: used() < before + SLACK, 15)
        if end != "close":
            bench.completed("first_touch", trial=5)


def test_a_checkpoint_of_the_gpu_goes_on_where_there_is_none(bench, monkeypatch):
    first = bench.completed("halves").checkpoint
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with contextlib.closing(Trainer(OBJECTIVE, (HERE,))) as trainer:
        without = Bench(trainer, bench.folder)
        second = without.completed("halves", rung=1, target=2, checkpoint=first).checkpoint
    assert "cuda" not in checkpoints.load(bench.folder, second)["random"]
    bench.completed("halves", rung=2, target=3, checkpoint=second)
