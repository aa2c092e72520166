"""Slurm's queue as its commands tell it: the jobs of a study, and what Slurm says where it takes none."""

from __future__ import annotations

import getpass
import hashlib
import re
import subprocess
from typing import NamedTuple

from hpo_flows.dask.clusters.kind import ClusterError

CALL_SECONDS = 60.0
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"})

_ENDS = {
    "TIMEOUT": "its time limit (cluster.walltime, or the partition's)",
    "CANCELLED": "cancelled (scancel)",
    "OUT_OF_MEMORY": "more memory than cluster.memory",
    "NODE_FAIL": "its node failed",
    "PREEMPTED": "preempted by another job",
}
_REASONS = {
    "Resources": "no node is free",
    "Priority": "other jobs come first",
    "JobHeldUser": "held; `scontrol release` lets them go",
    "JobHeldAdmin": "held by an administrator",
    "ReqNodeNotAvail": "nodes are down, drained or reserved",
    "Nodes required for job are DOWN": "nodes are down, drained or reserved",
    "Dependency": "waits for another job",
}
_SETTINGS = {
    "account": "cluster.account",
    "partition": "cluster.partition",
    "time limit": "cluster.walltime",
    "processors": "cluster.cores",
    "cpu": "cluster.cores",
    "memory": "cluster.memory",
    "gres": "cluster.gpus",
    "qos": "cluster.directives (--qos)",
}
"""A word of Slurm's message and the setting it is about; the first that is found counts."""


class SlurmJob(NamedTuple):
    """A job as ``squeue`` shows it."""

    state: str
    reason: str
    mark: str

    @property
    def has_ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state not in WAITING and self.state not in RUNNING

    @property
    def end_words(self) -> str:
        """Why it ended."""
        return _ENDS.get(self.state, self.state.lower().replace("_", " "))

    @property
    def wait_words(self) -> str:
        """Why it waits, in Slurm's word and in ours."""
        known = next((words for reason, words in _REASONS.items() if self.reason.startswith(reason)), "")
        reason = self.reason.partition(",")[0]
        return f"{reason}: {known}" if known else reason


def job_name(study: str) -> str:
    """Name of all jobs of a study."""
    return f"hpo-{study}"


def mark_of(folder: str) -> str:
    """Comment of the jobs of a study folder: another home may hold a study of the same name."""
    return f"hpo-{hashlib.sha256(folder.encode()).hexdigest()[:16]}"


def jobs_of(study: str, folder: str) -> dict[str, SlurmJob]:
    """A study's jobs by id, those that ended a few minutes ago too.

    Raises:
        ClusterError: Slurm does not answer.
    """
    fields = "--format=%i|%T|%k|%r"
    asked = ["squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", f"--name={job_name(study)}", fields]
    found: dict[str, SlurmJob] = {}
    for line in call(asked).splitlines():
        number, state, mark, reason = line.split("|", 3)
        if mark == mark_of(folder):
            found[number] = SlurmJob(state, reason, mark)
    return found


def cancel_jobs(numbers: list[str]) -> None:
    """End jobs, waiting or running.

    Raises:
        ClusterError: Slurm does not answer.
    """
    if numbers:
        call(["scancel", *numbers])


def call(command: list[str]) -> str:
    """What a command of Slurm's answers.

    Raises:
        ClusterError: it is missing here, failed, or took too long.
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CALL_SECONDS)
    except FileNotFoundError:
        raise ClusterError(
            f"cluster.kind = 'slurm' needs Slurm's commands, and {command[0]!r} is not found here. Start the study on "
            "a node of the cluster that has them (a login node), or mend PATH."
        ) from None
    except OSError as error:  # no process can be started now: a limit of the login node
        raise ClusterError(f"Slurm: {command[0]} cannot be started ({error.strerror or error}).") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"Slurm: no answer from {command[0]} within {CALL_SECONDS:.0f} s; try `sinfo`.") from None
    if done.returncode:
        raise ClusterError(f"Slurm: {command[0]} failed: {said(done.stderr)}")
    return done.stdout


def said(stderr: str) -> str:
    """What a command of Slurm's wrote to stderr, without its name before each line."""
    lines = [re.sub(r"^\w+: (error: )?", "", line.strip()) for line in stderr.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines)) or "no reason given"


def refusal(error: BaseException) -> str:
    """One sentence about a submission that failed, with its cure."""
    if isinstance(error, OSError):
        return (
            f"sbatch cannot be started here ({error.strerror or error}). Start the study on a node of the cluster that "
            "has Slurm's commands (a login node), or mend PATH"
        )
    reason = said(str(error).partition("stderr:\n")[2] or str(error))
    low = reason.lower()
    if "contact slurm controller" in low or "timed out" in low:
        return f"sbatch failed: {reason}. Look whether Slurm's controller runs (`sinfo`), then start again"
    setting = next((setting for word, setting in _SETTINGS.items() if word in low), "the settings below cluster:")
    return f"sbatch refused the job: {reason}. Change {setting} in the study (`sinfo` shows what there is)"
