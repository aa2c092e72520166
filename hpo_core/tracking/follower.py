"""The process that copies a journal to MLflow while its study runs, so that no search waits for it.

::

    HPO_FOLLOW='{...}' python -m hpo_core.tracking.follower STUDY_FOLDER

The variable holds a :class:`FollowRequest` as JSON: a command line, with its passwords, is shown to every user of the
machine. The folder is there for people, and tells followers of one study.

Its controller has ended once standard input does, or its parent is another process. It goes on then until MLflow holds
everything, however long that takes, and ends with exit code 0. It gives up, with exit code 3, where MLflow was out of
reach for ``patience`` seconds. Until then it tries again and again, and says so once. It may be killed at any moment:
the next follower of the home, or `hpo project`, does the rest.

How far it is stands in the study's folder (``mlflow.copy``). One follower for each study: a new one ends what an
earlier controller left behind.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec
import psutil

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal, Owner
from hpo_core.model.errors import HpoError, StudyNotFoundError
from hpo_core.security.masking import add_secrets_of, mask_logs, without_credentials
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import prepare_environment
from hpo_core.tracking.mlflow_projection import MlflowProjection, ProcessLock, ProjectionBusyError
from hpo_core.tracking.provenance_files import CodeVersion
from hpo_core.tracking.tracker_links import incomplete_copies, reason_of


class TrackerError(HpoError):
    """The tracker cannot be reached or refuses; the study is not concerned."""


def project_study(home: Home, journal: Journal, name: str, *, rebuild: bool = False) -> str:
    """Copy one study to MLflow; returns a line for people. Doing it twice changes nothing.

    Raises:
        StudyNotFoundError: no such study.
        ProjectionBusyError: its follower does this already.
        TrackerError: the study is not copied, or MLflow cannot be reached, or refuses.
    """
    info = journal.info(name)
    spec = Study.current_spec(name, journal)
    uri = home.tracking_uri(spec)
    if uri is None:
        raise TrackerError(
            f"Study {name!r} has tracking.mlflow = 'off' and is not copied. Leave that out when a "
            "study is created, and it is."
        )
    prepare_environment()
    folder = home.study_folder(name, create=True)
    projection = MlflowProjection(name, uri, spec.tracking.experiment, folder, home.artifact_location(spec))
    where = f"MLflow at {without_credentials(uri)}"
    try:
        count = project_all(projection, journal, info.entries, rebuild=rebuild)
        if not has_other_controller(info.owner):
            projection.finish()
        url, deleted = projection.url, projection.deleted
    except HpoError:
        raise
    except Exception as error:
        raise TrackerError(
            f"Study {name!r} was not copied to {where} ({reason_of(error)}). "
            "Check that it runs, then do this again; the study itself is not concerned."
        ) from error
    finally:
        projection.close()
    if deleted:
        return f"{name}: its run was deleted from {where} and stays so; `hpo project {name} --rebuild` makes it anew"
    return f"{name}: {count} new entries of {info.entries} copied; {url}"


def project_all(projection: MlflowProjection, journal: Journal, length: int, *, rebuild: bool = False) -> int:
    name = projection.study_name
    start = 0 if rebuild or projection.next_seq > length else projection.next_seq
    return projection.project(journal.entries(name, start, length), rebuild=rebuild, length=length)


def has_other_controller(owner: Owner | None, mine: int | None = None) -> bool:
    """True if another living controller than process ``mine`` runs the study."""
    return owner is not None and owner.host == socket.gethostname() and owner.pid != mine and owner.runs()


NOT_CAUGHT_UP = 3
PATIENCE_SECONDS = 20.0
"""A tracker that was out of reach for so long is not tried again at the end of a study."""
_LONGEST_PAUSE = 30.0
_REST = 3.0
"""While the study runs, a copy rests so many times as long as it took: trials need the processor more."""
_SLICE = 0.5
_HANG = 5.0
log = logging.getLogger("hpo.tracking")


class Follower:
    """Keeps a projection up with a journal."""

    def __init__(self, journal: Journal, projection: MlflowProjection) -> None:
        self.journal = journal
        self.projection = projection
        self.trouble = ""
        """Why the last attempt failed; empty where it did not."""
        self.study_deleted = False
        """Nothing is left to follow."""
        self._failures = 0
        self._failing_since = 0.0
        self.parent = os.getppid()
        """Process of the controller."""

    @property
    def pause(self) -> float:
        """Seconds until the next attempt is worth it, beyond the usual interval."""
        return min(_LONGEST_PAUSE, 0.5 * 2 ** min(self._failures, 20)) if self._failures else 0.0

    @property
    def absent_seconds(self) -> float:
        return time.monotonic() - self._failing_since if self._failures else 0.0

    def begin(self) -> None:
        """Say that it begins, in place of an earlier follower's last word."""
        projection = self.projection
        where = without_credentials(projection.tracking_uri)
        log.info("study %r is copied to MLflow at %s", projection.study_name, where)
        projection.note()

    def note_version(self) -> None:
        name = self.projection.study_name
        try:
            spec = Study.current_spec(name, self.journal)
            self.projection.version = None if spec.objective is None else CodeVersion.here(spec)
        except Exception as error:  # the copy of the numbers is worth more
            log.warning("study %r: the version of its code was not noted (%s).", name, reason_of(error))

    def advance(self, *, finish: bool = False) -> bool:
        """One attempt to catch up; whether it succeeded."""
        projection = self.projection
        name = projection.study_name
        try:
            info = self.journal.info(name)
            if projection.next_seq and projection.fold.created != info.created:
                raise StudyNotFoundError(f"Study {name!r} was deleted and created again; this follower ends.")
            if info.entries != projection.next_seq or self._failures:
                before = projection.url
                project_all(projection, self.journal, info.entries)
                if before is None and projection.url is not None:
                    log.info("study %r in MLflow: %s", name, projection.url)
            if finish and not has_other_controller(info.owner, self.parent):
                projection.finish()
        except StudyNotFoundError as error:
            self.study_deleted, self.trouble = True, str(error)
            return False
        except Exception as error:
            reason = reason_of(error)
            if not self.trouble:
                log.warning(
                    "study %r cannot be copied to MLflow at %s now (%s). The search goes on; this is tried again.",
                    name,
                    without_credentials(projection.tracking_uri),
                    reason,
                )
                self._failing_since = time.monotonic()
            self.trouble = reason
            self._failures += 1
            projection.note(trouble=reason)
            return False
        if self.trouble:
            log.warning("study %r: MLflow caught up again.", name)
            projection.note(complete=projection.progress.complete)
        self.trouble, self._failures = "", 0
        return True


def _controller_ends(seconds: float, parent: int) -> bool:
    # Wait for the controller's end at most so long; true if it came.
    # It closes our standard input, or is no longer our parent: a process that it forked may hold the pipe.
    until = time.monotonic() + seconds
    while os.getppid() == parent:
        left = until - time.monotonic()
        if select.select([0], [], [], min(_SLICE, max(left, 0.0)))[0]:
            return True
        if left <= 0:
            return False
    return True


def follow(follower: Follower, *, interval: float, patience: float) -> int:
    """Follow until the controller ends, then catch up; returns the exit code."""
    frozen = rests = False
    follower.note_version()
    while not follower.study_deleted:
        began = time.process_time()
        if follower.advance() and not frozen:
            gc.collect()
            gc.freeze()  # what was imported and mapped lives for ever and need not be scanned again
            frozen = True
        rest = min(_LONGEST_PAUSE, _REST * (time.process_time() - began)) if rests else 0.0
        rests = True  # the first copy is mostly the import of MLflow
        if _controller_ends(max(interval, rest) + follower.pause, follower.parent):
            break
    projection = follower.projection
    while not (follower.study_deleted or follower.advance(finish=True)):
        if follower.absent_seconds >= patience:
            _report(follower)
            return NOT_CAUGHT_UP
        time.sleep(1.0)
    if follower.study_deleted:
        log.warning("%s", follower.trouble)
    elif projection.progress.complete:
        where, trials = projection.url or "MLflow", len(projection.fold.trials)
        log.info("study %r: everything is copied, %d trials: %s", projection.study_name, trials, where)
    return 0


def complete_others(home: Home, journal: Journal) -> None:
    for name in incomplete_copies(home.folder / "studies"):
        try:
            if not has_other_controller(journal.info(name).owner):
                log.info("%s", project_study(home, journal, name))
        except ProjectionBusyError:
            continue
        except HpoError as error:
            log.warning("%s", error)


def _report(follower: Follower) -> None:
    projection = follower.projection
    log.error(
        "study %r: MLflow at %s does not hold everything (up to entry %d; %s). Nothing is lost: "
        "`hpo project %s` copies the rest once it works.",
        projection.study_name,
        without_credentials(projection.tracking_uri),
        projection.written_seq,
        follower.trouble,
        projection.study_name,
    )


REQUEST = "HPO_FOLLOW"
"""Environment variable with what a follower is to do."""


class FollowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to copy a study: what, and where to."""

    journal: str
    """URL of the journal."""
    study: str
    folder: str
    """Folder of the study: checkpoints, report.html, lock."""
    uri: str
    """Address of MLflow."""
    experiment: str = "hpo"
    """Experiment of MLflow."""
    artifact_location: str | None = None
    """Place of the files of an experiment that does not exist yet."""
    home: str = ""
    """Home whose other studies are completed once this one is: MLflow works then; empty: none."""
    patience: float = PATIENCE_SECONDS
    """Seconds that a tracker may be out of reach at the end."""
    interval: float = 1.0
    """Seconds between two reads of the journal."""


def main() -> int:
    """Entry point of ``python -m hpo_core.tracking.follower``."""
    given = msgspec.json.decode(os.environ.pop(REQUEST), type=FollowRequest)
    for url in (given.journal, given.uri):
        add_secrets_of(url)
    logging.basicConfig(format="%(asctime)s hpo tracking: %(message)s", level=logging.INFO, stream=sys.stderr)
    log.setLevel(logging.INFO)  # the first use of MLflow 3.6 sets another level for all others
    mask_logs()
    prepare_environment()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the controller decides
    os.umask(0o077)  # all it writes, MLflow's artifacts among them, is the user's alone

    from hpo_core.journal.sql import open_journal

    projection = MlflowProjection(given.study, given.uri, given.experiment, given.folder, given.artifact_location)
    try:
        follower = Follower(open_journal(given.journal), projection)
        end_older(projection.lock, given.folder)
        follower.begin()
        code = follow(follower, interval=given.interval, patience=given.patience)
        if given.home and code == 0:
            projection.close()
            complete_others(Home(given.home, given.journal), follower.journal)
        return code
    except HpoError as error:
        log.error("study %r is not followed: %s", given.study, error)
        return error.exit_code
    finally:
        projection.close()


def is_follower(process: int, folder: str | Path) -> bool:
    """True if a process follows the study of this folder; its number may be that of another process by now."""
    try:
        found = psutil.Process(process)
        *_, module, place = found.cmdline()
        is_this = module == __spec__.name and Path(place).samefile(folder)
        return is_this and found.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OSError):
        return False


def end_older(lock: ProcessLock, folder: str) -> None:
    """End a follower that works on this study; whoever else projects it is waited for.

    Whoever starts this one has claimed the study: the other one's controller is dead, or can write nothing more.
    """
    pid = lock.holder()
    if pid is None or pid == os.getpid() or not is_follower(pid, folder):
        return
    try:
        older = psutil.Process(pid)
        log.info("the follower of an earlier controller (process %d) is ended", pid)
        older.terminate()
        try:
            older.wait(_HANG)
        except psutil.TimeoutExpired:
            older.kill()
            older.wait(_HANG)
    except (psutil.Error, OSError):
        pass  # it ended just now, or is another user's: then the lock says so


if __name__ == "__main__":
    sys.exit(main())
