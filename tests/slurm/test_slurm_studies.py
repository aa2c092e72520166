"""Studies on a real Slurm: what its users and administrators do to their jobs."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from hpo_core.model.events import AttemptFailed, CapacityChanged, JobCompleted, TrialAbandoned
from hpo_core.model.trial import Outcome
from tests.slurm.conftest import SlurmStudy, wait_for
from tests.slurm.one_node import NODE, OneNodeSlurm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def only_lost(study: SlurmStudy) -> int:
    """How many attempts were lost; nothing else went wrong, and no trial was blamed for it."""
    outcomes = {failure.outcome for failure in study.facts(AttemptFailed)}
    assert outcomes <= {Outcome.LOST, Outcome.PREEMPTED}, study.facts(AttemptFailed)
    assert not study.facts(TrialAbandoned)
    return len(study.facts(AttemptFailed))


def processes_of(job: str) -> list[psutil.Process]:
    """What runs in a Slurm job."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # another user's, or gone
            if process.environ().get("SLURM_JOB_ID") == job:
                found.append(process)
    return found


def test_a_study_trains_in_slurm_jobs_and_leaves_none(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    study = SlurmStudy(tmp_path, slurm, cores=2, directives=["--nice=10"])
    process = study.start()
    wait_for(lambda: len(slurm.jobs("RUNNING")) == 2, "two jobs run")
    shown = slurm.call("scontrol", "show", "job", slurm.jobs("RUNNING")[0])
    for asked in (
        "JobName=hpo-digits",
        "NumCPUs=2",
        "MinMemoryNode=954M",
        "TimeLimit=01:00:00",
        "Nice=10",
        "Requeue=0",
    ):
        assert asked in shown, shown
    keys = study.home / "studies" / study.name / "tls"
    assert keys.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in keys.iterdir()} == {0o600}
    study.ends_well(process)
    done = study.facts(JobCompleted)
    assert only_lost(study) == 0 and len(done) >= 12
    assert all(job.worker.startswith("tls://") for job in done), "what runs between nodes is encrypted"
    assert not list(keys.iterdir()), "a key was left"


def test_jobs_leave_at_the_end_of_a_rung_and_come_back_for_the_next(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    """Nine configurations on two jobs: the ninth trains alone, then three go on, then one."""
    search = {"method": "sha", "configs": 9}
    study = SlurmStudy(tmp_path, slurm, pause=8.0, search=search, workers={"min": 0, "max": 2})
    study.ends_well(study.start())
    assert only_lost(study) == 0 and len(study.facts(JobCompleted)) == 13
    there = [event.inventory.slots for event in study.facts(CapacityChanged)]
    assert max(there) == 2 and there[-1] == 1, there
    assert " ".join(map(str, there)).count("2 1") >= 2, there


def test_the_end_of_a_jobs_time_loses_the_attempt_and_blames_no_trial(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    """A minute is the shortest limit that Slurm knows; the study takes longer than both jobs have."""
    study = SlurmStudy(tmp_path, slurm, pause=5.0, walltime="00:01:00")
    study.ends_well(study.start())
    assert only_lost(study) >= 1


def test_a_cancelled_job_is_submitted_again(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    study = SlurmStudy(tmp_path, slurm, pause=1.5)
    process = study.start()
    study.wait_for_words("[2 done")
    (first, *_) = slurm.jobs("RUNNING")
    slurm.call("scancel", first)
    wait_for(lambda: len(set(slurm.jobs("RUNNING")) - {first}) == 2, "two other jobs run")
    study.ends_well(process)
    assert only_lost(study) == 1


def test_a_study_waits_for_a_drained_node_and_goes_on(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    """Also the shortened form of hours in the queue."""
    slurm.call("scontrol", "update", f"NodeName={NODE}", "State=DRAIN", "Reason=maintenance")
    study = SlurmStudy(tmp_path, slurm)
    process = study.start()
    wait_for(lambda: len(slurm.jobs("PENDING")) == 2, "both wait")
    assert process.poll() is None
    slurm.call("scontrol", "update", f"NodeName={NODE}", "State=RESUME")
    study.ends_well(process)
    assert only_lost(study) == 0


def test_a_killed_controllers_jobs_leave_the_queue_and_resume_goes_on(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    study = SlurmStudy(tmp_path, slurm, pause=1.0)
    process = study.start()
    study.wait_for_words("[3 done")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not slurm.jobs("RUNNING"), "workers without a scheduler end", 150)
    study.ends_well(study.start("resume", study.name, "--no-prefect"))
    assert only_lost(study) >= 1


def test_two_studies_of_one_name_share_a_slurm(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    """Each has its own home; none touches the other's jobs."""
    studies = [SlurmStudy(tmp_path / place, slurm, pause=0.5) for place in ("one", "two")]
    processes = [study.start() for study in studies]
    wait_for(lambda: len(slurm.jobs("RUNNING")) == 4, "four jobs run")
    for study, process in zip(studies, processes, strict=True):
        study.ends_well(process)
        assert only_lost(study) == 0


def test_a_worker_that_stands_still_is_started_anew_in_its_job(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    study = SlurmStudy(tmp_path, slurm, pause=0.5, workers=1, worker_timeout=5)
    process = study.start()
    study.wait_for_words("[2 done")
    (job,) = slurm.jobs("RUNNING")
    (worker,) = [found for found in processes_of(job) if any("spawn_main" in part for part in found.cmdline())]
    worker.suspend()
    study.ends_well(process)
    assert only_lost(study) == 1 and not worker.is_running()


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (
            {"directives": ["--partition=gpus"]},
            "invalid partition specified: gpus; .* Change the settings below cluster",
        ),
        (
            {"directives": ["--partition=lab", "--account=other"]},
            "Invalid account .* Change the settings below cluster",
        ),
        ({"directives": ["--partition=short"]}, "time limit is invalid .* Change the settings below cluster"),
        ({"memory": "900GB"}, "Memory specification can not be satisfied; .* Change the settings below cluster"),
    ],
)
def test_what_slurm_refuses_is_said_in_one_sentence(
    cluster: dict[str, object], words: str, slurm: OneNodeSlurm, tmp_path: Path
) -> None:
    study = SlurmStudy(tmp_path, slurm, **cluster)
    assert study.start().wait(120) == 1
    assert re.search(words, study.said) and "Traceback" not in study.said and study.said.count("refused") == 1
    assert not slurm.jobs()


def test_a_home_that_a_job_script_cannot_name_is_refused(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    study = SlurmStudy(tmp_path / "my studies", slurm)
    assert study.start().wait(120) == 2
    assert "use a home folder (--home, HPO_HOME) without them" in study.said and not slurm.jobs()


def test_ctrl_c_in_the_queue_removes_the_jobs(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    slurm.call("scontrol", "update", f"NodeName={NODE}", "State=DRAIN", "Reason=maintenance")
    study = SlurmStudy(tmp_path, slurm)
    process = study.start()
    wait_for(lambda: len(slurm.jobs("PENDING")) == 2, "both wait")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, study.said
    wait_for(lambda: not slurm.jobs("PENDING"), "no job is left", 30)


def test_slurms_controller_may_be_away_for_a_while(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    study = SlurmStudy(tmp_path, slurm, pause=1.0)
    process: subprocess.Popen[bytes] = study.start()
    study.wait_for_words("[2 done")
    slurm.restart_controller(away=15.0)
    study.ends_well(process)
    assert only_lost(study) == 0
