"""When the worker dies without a word, nothing of its training goes on."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.request import decode_report, encode_request
from hpo_core.training.worker import train_job, trainers
from tests.job_requests import make_request
from tests.waiting import eventually, gone

ROOT = Path(__file__).parents[2]
OBJECTIVES = str(ROOT / "tests/training")


def request_for(folder, trial=4):
    return make_request(
        study="s",
        job=Job(trial, 0, Rung(0, 0), 1, {"do": "deaf"}),
        objective="test_training_objectives:dispatch",
        metric="loss",
        seed=1,
        folder=str(folder),
        pythonpath=(OBJECTIVES,),
        grace=0.2,
    )


def pids(folder, trial=4):
    note = Path(folder) / f"scratch/trial-{trial:05d}/pids"
    return [int(pid) for pid in note.read_text().split()] if note.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_children_of_a_killed_worker_end(tmp_path, end):
    (tmp_path / "request").write_bytes(encode_request(request_for(tmp_path)))
    code = "import sys; from hpo_core.training.worker import train_job; train_job(open(sys.argv[1], 'rb').read())"
    worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "request")], cwd=ROOT)
    try:
        assert eventually(lambda: len(pids(tmp_path)) == 2)
        child, grandchild = pids(tmp_path)
        zygote = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        assert not gone(child) and not gone(zygote)
        worker.send_signal(end)
        worker.wait(600)
        for pid in (child, grandchild, zygote):
            assert eventually(lambda pid=pid: gone(pid)), f"process {pid} outlived its worker"
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.slow
def test_children_of_a_killed_zygote_end(tmp_path):
    reports = []
    request = encode_request(request_for(tmp_path, 5))
    thread = threading.Thread(target=lambda: reports.append(decode_report(train_job(request))))
    thread.start()
    try:
        assert eventually(lambda: len(pids(tmp_path, 5)) == 2)
        child, grandchild = pids(tmp_path, 5)
        os.kill(int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        thread.join(600)
        assert reports[0].outcome == Outcome.LOST
        assert all(eventually(lambda pid=pid: gone(pid)) for pid in (child, grandchild))

        thread = threading.Thread(target=lambda: reports.append(decode_report(train_job(request_again))))
        request_again = encode_request(request_for(tmp_path, 6))
        thread.start()
        assert eventually(lambda: len(pids(tmp_path, 6)) == 2)
        assert trainers.cancel("another study", 6, 0) is False
        assert trainers.cancel(request_for(tmp_path, 6).folder, 6, 0) is True
        thread.join(600)
        assert reports[1].outcome == Outcome.PREEMPTED
    finally:
        trainers.close_all()
