"""Training functions that harm the processes around them cost their own trial, and nothing else. Real processes."""

import dataclasses
import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from hpo_core import Study
from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.replay.audit import audit
from hpo_core.training.child.trainer import Trainer
from hpo_core.views.states import trial_story
from tests.faults.test_real_study import Real
from tests.job_requests import make_request
from tests.waiting import eventually, gone

HERE = str(Path(__file__).parent)
OBJECTIVE = "poison_objectives:dispatch"


@pytest.fixture(scope="module")
def trainer():
    trainer = Trainer(OBJECTIVE, (HERE,))
    yield trainer
    trainer.close()


@dataclasses.dataclass
class Bench:
    trainer: Trainer
    folder: Path

    def request(self, do, *, trial=0, attempt=0, target=1, checkpoint=None, params=None, **limits):
        return make_request(
            study="s",
            job=Job(trial, attempt, Rung(0, 0), target, {"do": do, **(params or {})}, checkpoint),
            objective=OBJECTIVE,
            metric="loss",
            seed=3,
            folder=str(self.folder),
            pythonpath=(HERE,),
            **{"timeout": 600.0, "stall_timeout": 600.0, "grace": 0.3, **limits},
        )

    def run(self, do, **options):
        return self.trainer.run(self.request(do, **options))

    @property
    def zygote(self):
        return self.trainer.pid

    def log(self, trial=0, attempt=0):
        return self.folder / f"logs/trial-{trial:05d}-attempt-{attempt}.log"


@pytest.fixture
def bench(trainer, tmp_path):
    trainer.prepare()
    return Bench(trainer, tmp_path)


def assert_zygote_is_the_same(bench, before):
    assert bench.zygote == before, "the zygote died"
    assert bench.run("good", trial=77).outcome == Outcome.COMPLETED
    assert bench.zygote == before


@pytest.mark.parametrize("do", ["garbage", "endless_messages", "somebody_elses_report"])
def test_garbage_on_inherited_descriptors_fails_only_the_attempt(bench, do):
    before = bench.zygote
    report = bench.run(do, trial=3)
    assert (report.trial, report.outcome) == (3, Outcome.CRASHED), report
    assert "report" in report.message and "descriptor" in report.message
    assert_zygote_is_the_same(bench, before)


def test_children_inherit_one_descriptor_and_those_of_their_module(bench):
    report = bench.run("notes_descriptors", trial=5)
    assert report.outcome == Outcome.COMPLETED, report
    found = json.loads((bench.folder / "scratch/trial-00005/fds").read_text())
    kinds = sorted(target.partition(":")[0] for target in found.values() if not target.startswith("/proc/"))
    assert kinds == [str(Path(HERE) / "poison_objectives.py"), "pipe"], found


@pytest.mark.parametrize("value", ["nan", "future"])
def test_any_value_in_the_shared_progress_is_harmless(bench, value):
    before = bench.zygote
    params = {"value": value, "then_sleep": 0.3}
    assert bench.run("scribbles_on_the_board", params=params).outcome == Outcome.COMPLETED
    report = bench.run("scribbles_on_the_board", params=params | {"then_sleep": 300}, target=9, stall_timeout=1.0)
    assert report.outcome == Outcome.HUNG, report
    assert_zygote_is_the_same(bench, before)


def test_a_fork_in_user_code_writes_nothing_twice(bench):
    report = bench.run("forks", trial=8, target=3)
    assert report.outcome == Outcome.COMPLETED
    assert [path.name for path in (bench.folder / "checkpoints").rglob("*.*")] == ["rung-0-attempt-0.safetensors"]
    assert (bench.folder / report.checkpoint.uri).stat().st_size == report.checkpoint.size
    assert bench.run("good", trial=8, attempt=1, target=4, checkpoint=report.checkpoint).outcome == Outcome.COMPLETED


def pids_of(bench, trial=4):
    note = bench.folder / f"scratch/trial-{trial:05d}/pids"
    return [int(pid) for pid in note.read_text().split()] if note.exists() else []


@pytest.mark.parametrize(
    "how", ["cancel", *(pytest.param(how, marks=pytest.mark.slow) for how in ("zygote killed", "trainer closed"))]
)
def test_daemon_processes_end_whatever_the_outcome(tmp_path, how):
    trainer = Trainer(OBJECTIVE, (HERE,))
    bench = Bench(trainer, tmp_path)
    reports = []
    thread = threading.Thread(target=lambda: reports.append(bench.run("daemons", trial=4, params={"then_sleep": 300})))
    thread.start()
    try:
        assert eventually(lambda: len(pids_of(bench)) == 3)
        if how == "cancel":
            trainer.cancel(4, 0)
        elif how == "trainer closed":
            trainer.close()
        else:
            os.kill(bench.zygote, signal.SIGKILL)
        thread.join(600)
        assert reports and reports[0].outcome in (Outcome.PREEMPTED, Outcome.LOST)
        marked = [pid for i, pid in enumerate(pids_of(bench)) if how != "zygote killed" or i != 1]
        assert all(eventually(lambda pid=pid: gone(pid)) for pid in marked)
    finally:
        trainer.close()
        for pid in pids_of(bench):
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_log_has_a_limit_and_keeps_both_ends(bench):
    report = bench.run("chatty", params={"lines": 30_000, "external": True}, log_limit=1_000_000)
    assert report.outcome == Outcome.COMPLETED
    text = bench.log().read_bytes()
    assert len(text) <= 1_000_000 + 200
    assert text.startswith(b"%099d\n%099d\n" % (0, 1)) and text.endswith(b"%099d\nthe last line\n" % 29_999)
    [line] = [line for line in text.splitlines() if b"dropped" in line]
    dropped = int(line.split()[1].replace(b",", b""))
    assert dropped + len(text) - len(line) - 2 == 2 * 30_000 * 100 + len("the last line\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.parametrize("do", ["fills_study_disk", "hides_the_failed_save"])
def test_a_full_study_folder_is_a_storage_error(bench, do):
    disk = bench.folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("this machine forbids mounts")
    try:
        report = dataclasses.replace(bench, folder=disk).run(do)
        assert report.outcome == Outcome.STORAGE, report
        assert "No space left" in report.message
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_study_abandons_trials_that_kill_workers_and_finishes(tmp_path):
    """One configuration in ten kills its zygote at every attempt; Dask, children and journal are real."""
    study_file = Real(
        tmp_path,
        objective="poison_objectives:poison",
        pythonpath=[HERE],
        search={"method": "asha", "configs": 20, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    )
    process = study_file.start()
    assert process.wait(600) == 0, study_file.log.read_text()[-3000:]
    entries = list(study_file.home.open_journal().entries("real"))
    study = Study.from_entries(entries)
    assert study.status == "finished", study.state.halted
    assert audit(entries).clean
    poison = {trial.number for trial in study.state.trials if trial.params["x"] > 0.8}
    assert poison and len(study.state.trials) == 20
    for trial in study.state.trials:
        assert (trial.abandoned is not None) == (trial.number in poison), trial_story(study, trial.number)
        assert bool(trial.results) != (trial.number in poison)
    assert all("worker or zygote died" in study.state.trials[number].abandoned.reason for number in poison)
