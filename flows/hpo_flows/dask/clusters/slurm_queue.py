"""Watch over the Slurm jobs of a study: what they wait for, and which ended before their worker came."""

from __future__ import annotations

import getpass
import hashlib
import logging
import re
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from distributed.core import Status

from hpo_flows.dask.clusters.kind import ClusterError

CALL_SECONDS = 60.0
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"})


class SlurmJob(NamedTuple):
    """A job as ``squeue`` shows it."""

    state: str
    reason: str

    @property
    def has_ended(self) -> bool:
        return self.state not in WAITING and self.state not in RUNNING


def job_name(study: str) -> str:
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
            found[number] = SlurmJob(state, reason)
    return found


def cancel_jobs(numbers: list[str], *, waiting: bool = False) -> None:
    """End jobs, waiting or running.

    Args:
        waiting: only those that wait in the queue.

    Raises:
        ClusterError: Slurm does not answer.
    """
    if numbers:
        call(["scancel", *(["--state=PENDING"] if waiting else []), *numbers])


def call(command: list[str]) -> str:
    """Run a command of Slurm and return its output.

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
    """Error output of a Slurm command, without the command's name before each line."""
    lines = [re.sub(r"^\w+: (error: )?", "", line.strip()) for line in stderr.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines)) or "no reason given"


def refusal(error: BaseException) -> str:
    """One sentence about a submission that failed, with its cure."""
    if isinstance(error, OSError):
        return (
            f"sbatch cannot be started here ({error.strerror or error}). Start the study on a login node, or mend PATH"
        )
    reason = said(str(error).partition("stderr:\n")[2] or str(error))
    return f"sbatch refused the job: {reason}. Change the settings below cluster: in the study, or look at `sinfo`"


SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 30.0
"""Time between two looks at the queue: longer the longer nothing changed, for a controller serves a whole site."""

AGAIN_SECONDS = 60.0
"""Time after which jobs that ended without a worker are submitted again."""


class SlurmWatch:
    """Looks at the queue from a thread of its own.

    dask-jobqueue learns of a job's end from its worker's end. Of a job that never had a worker (cancelled while it
    waited, failed in its prologue, refused by sbatch) it would wait for one for ever.

    Args:
        study: name of the study.
        folder: absolute study folder.
    """

    def __init__(self, study: str, folder: str) -> None:
        self._study, self._folder = study, folder
        self._cluster: Any = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._known: dict[str, SlurmJob] = {}
        self._last_unseen = -AGAIN_SECONDS
        self._news: list[str] = []
        self.waiting_words = ""
        """Sentence on why jobs wait now; empty: none waits."""
        self._refusal = ""
        self.jobs: dict[str, Any] = {}
        """Jobs of dask-jobqueue, submitted or about to be, by their worker's name."""
        self.refusals: list[str] = []
        """Why Slurm refused jobs."""
        self.ended_unseen: list[str] = []
        """Jobs that ended before their worker came."""
        self.given_back: set[str] = set()
        """Numbers of jobs that the study could not use any more: their end is no news."""
        self.submit_from = 0.0
        """Moment of the monotonic clock before which nothing is submitted again."""

    # Told by the jobs, on Dask's loop.

    def refused(self, why: str) -> None:
        self.refusals.append(why)
        self.submit_from = time.monotonic() + AGAIN_SECONDS

    # Asked by the executor.

    def news(self) -> str:
        """News that was not told before; may be empty."""
        with self._lock:
            news, self._news = " ".join(self._news), []
        return news

    # The thread.

    def start(self, cluster: Any) -> None:
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run, name="slurm-queue", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a look that is under way ends by itself."""
        self._stopping.set()

    def _run(self) -> None:
        changed = time.monotonic()
        while not self._stopping.wait(min(LONGEST_SECONDS, max(SHORTEST_SECONDS, (time.monotonic() - changed) / 4))):
            try:
                before = self._known
                self._look(jobs_of(self._study, self._folder))
                if self._known != before:
                    changed = time.monotonic()
            except ClusterError as error:  # Slurm's controller may be away for a while; what runs goes on
                logging.getLogger(__name__).debug("%s", error)

    def _look(self, queue: dict[str, SlurmJob]) -> None:
        lines = [
            f"Slurm job {number} ended: {job.state}."
            for number, job in queue.items()
            if job.has_ended and number in self._known and not self._known[number].has_ended
            and number not in self.given_back
        ]  # fmt: skip
        for name, job in list(self.jobs.items()):
            if job.job_id is None and not job.was_refused:
                continue  # it is being submitted
            number = str(job.job_id)
            seen = queue.get(number)
            is_gone = seen.has_ended if seen is not None else number in self._known
            if job.was_refused or (is_gone and not job.had_worker):
                if number in self.given_back:
                    del self.jobs[name]
                    continue
                if not job.was_refused:
                    self._ended_unseen(number, seen)
                elif self.refusals[-1] != self._refusal:
                    self._refusal = self.refusals[-1]
                    lines.append(f"{self._refusal}. It is tried again.")
                self._forget(name)
        self._known = queue
        waiting = _words(queue)
        with self._lock:
            if waiting != self.waiting_words:
                lines.append(waiting or "Slurm: no job waits in the queue any more.")
                self.waiting_words = waiting
            self._news += lines

    def _ended_unseen(self, number: str, job: SlurmJob | None) -> None:
        now = time.monotonic()
        if now < self._last_unseen + AGAIN_SECONDS:  # not a person's scancel: it happens each time
            self.submit_from = now + AGAIN_SECONDS
        self._last_unseen = now
        self.ended_unseen.append(self._end_of(number, job))

    def _forget(self, name: str) -> None:
        # Make room: another job of that worker's name is submitted when the cluster is scaled next.
        del self.jobs[name]
        self._cluster.loop.add_callback(self._cluster.workers.pop, name, None)

    def _end_of(self, number: str, job: SlurmJob | None) -> str:
        words = f"job {number} ended before its worker came ({'gone' if job is None else job.state})"
        file = Path(self._folder) / "logs" / "slurm" / f"{job_name(self._study)}-{number}.err"
        try:
            lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            lines = []
        return f"{words}; its last words: {lines[-1].strip()[:300]!r} in {file}" if lines else words


def _words(jobs: dict[str, SlurmJob]) -> str:
    waiting = [job for job in jobs.values() if job.state in WAITING and job.reason != "None"]  # None: not looked at yet
    alive = sum(not job.has_ended for job in jobs.values())
    if not waiting:
        return ""
    reason = Counter(job.reason for job in waiting).most_common(1)[0][0]
    jobs_words = "the job waits" if alive == 1 else f"{len(waiting)} of {alive} jobs wait"
    return f"Slurm: {jobs_words} in the queue ({reason})."


def watched_cluster(jobqueue: Any, watch: SlurmWatch) -> Any:

    class WatchedJob(jobqueue.SLURMCluster.job_cls):  # type: ignore[misc]
        """A job that Slurm may refuse: else nobody learns of it."""

        had_worker = False
        was_refused = False

        async def start(self) -> None:
            watch.jobs[self.name] = self
            try:
                await super().start()
            except (RuntimeError, OSError) as error:
                self.was_refused = True
                self.status = Status.running
                watch.refused(refusal(error))

    class WatchedCluster(jobqueue.SLURMCluster):  # type: ignore[misc]
        """Notes whose worker came."""

        job_cls = WatchedJob

        def _update_worker_status(self, op: str, msg: Any) -> None:
            if op == "add":
                for worker in msg["workers"].values():
                    if (job := watch.jobs.get(worker["name"])) is not None:
                        job.had_worker = True
            super()._update_worker_status(op, msg)

        async def scale_down(self, workers: Any) -> None:
            watch.given_back.update(str(watch.jobs[name].job_id) for name in workers if name in watch.jobs)
            await super().scale_down(workers)

    return WatchedCluster
