"""Real child processes: the same bits over three of them, and the right outcome for every way to end."""

import dataclasses
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.worker import train_job, trainers
from tests.job_requests import make_request
from tests.waiting import eventually, gone

HERE = str(Path(__file__).parent)
OBJECTIVE = "test_training_objectives:dispatch"


@pytest.fixture(scope="module")
def trainer():
    trainer = Trainer(OBJECTIVE, (HERE,))
    yield trainer
    trainer.close()


@dataclasses.dataclass
class Bench:
    trainer: Trainer
    folder: Path
    process: str = "fresh"

    def request(self, do, *, trial=0, attempt=0, rung=0, target=1, checkpoint=None, params=None, **limits):
        job = Job(trial, attempt, Rung(0, rung), target, {"do": do, **(params or {})}, checkpoint)
        return make_request(
            job=job,
            objective=OBJECTIVE,
            folder=str(self.folder),
            pythonpath=(HERE,),
            process=self.process,
            **{"timeout": 600.0, "stall_timeout": 600.0, "grace": 0.3, **limits},
        )

    def run(self, do, **options):
        return self.trainer.run(self.request(do, **options))


@pytest.fixture(params=["fresh", pytest.param("kept", marks=pytest.mark.slow)])
def bench(trainer, tmp_path, request):
    """All holds as well in a process that served an attempt before."""
    bench = Bench(trainer, tmp_path, request.param)
    if request.param == "kept":
        assert bench.run("simple").outcome == Outcome.COMPLETED
        assert trainer.waiting is not None, "it stays"
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)
    return bench


def test_one_process_and_three_processes_give_the_same_bits(bench):
    whole = bench.run("network", trial=1, target=9)
    assert whole.outcome == Outcome.COMPLETED, whole
    checkpoint = None
    for rung, target in enumerate((1, 3, 9)):
        part = bench.run("network", trial=2, rung=rung, target=target, checkpoint=checkpoint)
        assert part.outcome == Outcome.COMPLETED, part
        checkpoint = part.checkpoint
    assert part.metrics == whole.metrics
    ones, others = (load_file(bench.folder / report.checkpoint.uri) for report in (whole, part))
    assert ones.keys() == others.keys() and len(ones) > 10
    for name, tensor in ones.items():
        assert tensor.numpy().tobytes() == others[name].numpy().tobytes(), name


def test_a_completed_attempt_has_a_log(bench):
    before = time.time()
    report = bench.run("simple", trial=7, attempt=3)
    assert (report.outcome, report.metrics, report.trial, report.attempt) == ("completed", {"loss": 0.5}, 7, 3)
    assert before <= report.started <= report.ended <= time.time() and report.worker
    assert (bench.folder / "logs/trial-00007-attempt-3.log").read_text() == "hello from 7\n"


@pytest.mark.parametrize(
    ("do", "outcome", "told"),
    [
        ("raises", Outcome.ERROR, "KeyError: 'no such layer'"),
        ("exits", Outcome.ERROR, "SystemExit: 3"),
        ("quits", Outcome.CRASHED, "with code 7"),
        ("segfault", Outcome.CRASHED, "signal 11 (SIGSEGV)"),
        ("killed", Outcome.CRASHED, "was ended by SIGKILL (kill -9). The kernel ended no process of"),
        ("kills_its_session", Outcome.CRASHED, "was ended by SIGKILL (kill -9). The kernel ended no process of"),
        ("memory_error", Outcome.OUT_OF_MEMORY, "MemoryError: no room"),
        ("cuda_memory", Outcome.OUT_OF_MEMORY, "2.00 GiB"),
        ("old_cuda_memory", Outcome.OUT_OF_MEMORY, "CUDA out of memory"),
        ("cublas_memory", Outcome.OUT_OF_MEMORY, "CUBLAS_STATUS_ALLOC_FAILED"),
    ],
)
def test_failures_have_their_outcome(bench, do, outcome, told):
    report = bench.run(do)
    assert (report.outcome, report.metrics, report.checkpoint) == (outcome, {}, None)
    assert told in report.message


def test_detail_holds_output_and_traceback(bench):
    detail = bench.run("raises").detail
    assert "before the fall" in detail and "in raises" in detail and detail.count("Traceback") == 1
    assert "about to quit" in bench.run("quits").detail
    assert "Segmentation fault" in bench.run("segfault").detail


def test_cancel_ends_a_process_that_ignores_sigterm_and_its_children(bench):
    reports = []
    thread = threading.Thread(target=lambda: reports.append(bench.run("deaf", trial=4, attempt=2)))
    thread.start()
    note = bench.folder / "scratch/trial-00004/pids"
    assert eventually(lambda: note.exists() and len(note.read_text().split()) == 2)
    bench.trainer.cancel(4, 1)  # another attempt: nothing happens
    time.sleep(0.1)
    assert not reports
    bench.trainer.cancel(4, 2)
    thread.join(600)
    assert reports[0].outcome == Outcome.PREEMPTED
    assert all(eventually(lambda pid=pid: gone(pid)) for pid in note.read_text().split())


def test_an_attempt_whose_trainer_is_closed_during_the_import_is_preempted(tmp_path):
    code = "import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\ntime.sleep(3600)\n"
    (tmp_path / "slowly.py").write_text(code)
    request = make_request(
        job=Job(0, 0, Rung(0, 0), 1, {}), objective="slowly:train", folder=str(tmp_path), pythonpath=(str(tmp_path),)
    )
    trainer, reports = Trainer("slowly:train", (str(tmp_path),)), []
    thread = threading.Thread(target=lambda: reports.append(trainer.run(request)))
    thread.start()
    assert eventually((tmp_path / "begun").exists)
    trainer.close()
    thread.join(600)
    assert reports[0].outcome == Outcome.PREEMPTED


def test_subprocesses_left_by_a_completed_attempt_are_killed(bench):
    assert bench.run("litter", trial=4).outcome == Outcome.COMPLETED
    assert eventually(lambda: gone((bench.folder / "scratch/trial-00004/pids").read_text()))


def test_a_lingering_thread_delays_the_end_by_the_grace_period_at_most(bench):
    assert bench.run("lingering_thread").outcome == Outcome.COMPLETED  # and not an hour later, when its thread ends


def test_a_corrupt_checkpoint_is_an_outcome_of_its_own(bench):
    saved = bench.run("counting").checkpoint
    path = bench.folder / saved.uri
    path.write_bytes(path.read_bytes()[:-1])
    bench.run("counting", trial=1)  # else a process that stays has the state in memory
    report = bench.run("counting", target=3, attempt=1, checkpoint=saved)
    assert report.outcome == Outcome.CHECKPOINT_BAD and "rung-0-attempt-0" in report.message


@pytest.mark.parametrize("blocked", ["checkpoints", "logs"])
def test_storage_errors_are_recognizable(bench, blocked):
    (bench.folder / blocked).write_text("a file where a folder must be")
    report = bench.run("counting")
    assert report.outcome == Outcome.STORAGE and "cannot be written" in report.message


@pytest.mark.parametrize(
    ("code", "objective", "error", "told"),
    [
        ("", "lost_module:train", SpecError, "there is no module 'lost_module'.*pythonpath"),
        ("import lost_dependency", "mine:train", ObjectiveError, "No module named 'lost_dependency'"),
        ("raise SystemExit", "mine:train", ObjectiveError, "SystemExit"),
        ("import os; os._exit(9)", "mine:train", ObjectiveError, "ended with exit code 9"),
        ("import time; time.sleep(60)", "mine:train", ObjectiveError, "took longer than 0.5 s"),
    ],
)
def test_objectives_that_cannot_be_imported(tmp_path, monkeypatch, code, objective, error, told):
    (tmp_path / "mine.py").write_text(code)
    if "sleep" in code:
        monkeypatch.setattr("hpo_core.training.child.trainer.IMPORT_SECONDS", 0.5)
    trainer = Trainer(objective, (str(tmp_path),))
    with pytest.raises(error, match=told):
        trainer.prepare()
    trainer.close()


def test_an_objective_without_torch_never_loads_it(tmp_path):
    code = "import sys\ndef train(trial):\n    trial.report(loss='torch' in sys.modules and 1 or 0)\n"
    (tmp_path / "plain.py").write_text(code)
    request = make_request(
        job=Job(0, 0, Rung(0, 0), 1, {}), objective="plain:train", folder=str(tmp_path), pythonpath=(str(tmp_path),)
    )
    try:
        assert train_job(request).metrics == {"loss": 0.0}
        (tmp_path / "plain.py").write_text(code.replace("and 1 or 0", "and 1 or 22"))
        trainers.prepare("plain:train", (str(tmp_path),))  # a new study sees new code
        assert train_job(request).metrics == {"loss": 22.0}
        assert trainers.cancel(str(tmp_path), 0, 0) is False
    finally:
        trainers.close_all()


def test_the_controller_loads_no_torch():
    code = "import sys, hpo_core.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(HERE).parents[1]).returncode == 0
