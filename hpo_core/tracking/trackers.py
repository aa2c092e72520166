"""The process that copies a study to MLflow, and the wait for it at its end."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec

from hpo_core.home import Home
from hpo_core.model.errors import HpoError, SpecError, StorageError
from hpo_core.security.masking import without_credentials
from hpo_core.security.private_files import open_private
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.tracking.follower import REQUEST, FollowRequest, has_other_controller, is_follower
from hpo_core.tracking.tracker_links import (
    CopyProgress,
    ProjectionPlace,
    in_trouble,
    incomplete_copies,
    note_progress,
    read_place,
    read_progress,
)

log = logging.getLogger("hpo.session")

MOST_SECONDS = 600.0
"""Longest wait of a study's end for its copy."""
SHORT_WAIT_SECONDS = 0.5
"""Wait of the report of a study that nobody awaits for its run in MLflow, to link to it."""
NOT_SAID_SECONDS = 2.0
"""A wait that is shorter needs no words."""
SAID_EVERY_SECONDS = 5.0


class Trackers:
    """MLflow is fed by a process of its own that reads the journal: it cannot slow or stop the search.

    Args:
        journal_url: with its password; default: that of the home.
    """

    def __init__(self, home: Home, spec: StudySpec, *, journal_url: str = "") -> None:
        self._home = home
        self._spec = spec
        self._study = spec.study
        self._folder = home.study_folder(spec.study)
        self._journal_url = journal_url or home.journal_url
        self._process: subprocess.Popen[bytes] | None = None
        self.uri = self._find_uri()
        """Where the study is copied to; empty: nowhere."""
        self.is_awaited = True
        """The end waits until the copy is complete; else its process goes on after this one's end."""
        self._one_attempt = False
        self.trials = 0
        """Trials of the study, for words about the copy."""
        self.say: Callable[[str], None] = log.info
        """Told how far the copy is while the end waits for it."""

    def start(self) -> None:
        """Start the process, unless tracking is off."""
        if self.uri:
            self._follow()

    def finish(self, seconds: float | None = None) -> str | None:
        """Have the copy completed, and wait for that; returns a warning where it is not. Safe to call twice.

        The process is not ended: what is left is copied after this one's end.

        Args:
            seconds: longest wait; None: :data:`MOST_SECONDS` where it is awaited.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        if process.stdin is not None:
            process.stdin.close()  # it catches up, and ends
        longest = self._seconds if seconds is None else seconds
        return self._wait(longest, process.pid, lambda: process.poll() is None)

    def complete(self, *, one_attempt: bool = False) -> str | None:
        """Complete the copy of a study that nobody drives where it is not, and wait as :meth:`finish` does.

        Args:
            one_attempt: wait no longer once MLflow could not be reached.
        """
        self._one_attempt = one_attempt
        if not self.uri:
            return None
        known = read_progress(self._folder)
        if known is None:  # never copied, or before there was such a file
            known = CopyProgress(complete=read_place(self._folder) is not None)
        if not known.complete and is_follower(known.process, self._folder):
            return self._wait(self._seconds, None, partial(is_follower, known.process, self._folder))
        if not known.complete:
            self._follow()
        return self.finish()

    @property
    def _seconds(self) -> float:
        return MOST_SECONDS if self.is_awaited else 0.0

    def _wait(self, seconds: float, process: int | None, goes_on: Callable[[], bool]) -> str | None:
        if not self.is_awaited and goes_on() and not in_trouble(self._folder):
            known = read_progress(self._folder) or CopyProgress()
            if not known.complete or process not in (None, known.process):
                self.say(f"{known.words(self.trials)}; this goes on in the background")
            return None
        why = self._waited(seconds, process, goes_on)
        if not why:
            return None
        return (
            f"Study {self._study!r} is not complete in MLflow yet ({why}; log: {self._log}). Nothing is "
            f"lost: `hpo project {self._study}`, `hpo ui` and the next study of this home complete it."
        )

    def _waited(self, seconds: float, process: int | None, goes_on: Callable[[], bool]) -> str:
        # Why MLflow does not hold everything after so many seconds; empty where it does.
        began = time.monotonic()
        said, words = began + NOT_SAID_SECONDS - SAID_EVERY_SECONDS, ""
        while True:
            alive = goes_on()  # before its last words are read
            found = read_progress(self._folder) or CopyProgress()
            if found.complete and process in (None, found.process):
                return ""
            holds = f"it holds {min(found.trials, self.trials):,} of {self.trials:,} trials"
            now = time.monotonic()
            if not alive or (self._one_attempt and found.trouble):
                return f"{holds}; {found.trouble or 'its process ended'}"
            if now - began >= seconds:
                return f"{holds}; {found.trouble or f'that took longer than {seconds:.3g} s, and goes on'}"
            if now - said >= SAID_EVERY_SECONDS and (now_said := found.words(self.trials)) != words:
                said, words = now, now_said
                self.say(words)
            time.sleep(min(0.1, max(0.0, began + seconds - now)))

    def _find_uri(self) -> str:
        try:
            uri = self._home.tracking_uri(self._spec) or ""
        except SpecError as error:  # the environment is another one than when the study was created
            log.warning("study %r is not copied to MLflow: %s", self._study, error)
            return ""
        if uri and find_spec("mlflow") is None:
            log.warning(
                "study %r is not shown in MLflow, which is not installed: `pip install 'hpo-core[mlflow]'`, then "
                "`hpo project %s` catches up; or set tracking.mlflow to off.",
                self._study,
                self._study,
            )
            return ""
        return uri

    def _follow(self) -> None:
        request = FollowRequest(
            journal=self._journal_url,
            study=self._study,
            folder=str(self._folder),
            uri=self.uri,
            experiment=self._spec.tracking.experiment,
            artifact_location=self._home.artifact_location(self._spec),
            home=str(self._home.folder),
        )
        note_progress(self._folder, CopyProgress())  # should the process never get that far
        with open_private(self._log, "ab") as output:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            output.write(f"{now} a process is started for MLflow at {without_credentials(self.uri)}\n".encode())
            output.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hpo_core.tracking.follower", str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | {REQUEST: msgspec.json.encode(request).decode()},
            )

    @property
    def _log(self) -> Path:
        return self._folder / "mlflow.log"

    def mlflow_run(self, wait: float = 0.0) -> ProjectionPlace | None:
        """Where the study's MLflow run is; ``wait`` seconds at most for its process to make it, if it can at all."""
        deadline = time.monotonic() + wait
        while (place := read_place(self._folder)) is None:
            is_followed = self._process is not None and self._process.poll() is None
            if not is_followed or in_trouble(self._folder) or time.monotonic() >= deadline:
                return None
            time.sleep(0.1)
        return place

    def links(self) -> dict[str, str]:
        """To the study in MLflow, for its report."""
        place = self.mlflow_run(wait=self._seconds or SHORT_WAIT_SECONDS)
        return {} if place is None else {"MLflow": place.url}


def complete_copy(home: Home, study: Study, say: Callable[[str], None], *, one_attempt: bool = False) -> None:
    """Complete the copy of a study, if nobody drives it; logs a warning where it is not complete then."""
    with closing(home.read_journal()) as journal:
        owner = journal.info(study.name).owner
    if not has_other_controller(owner):
        trackers = Trackers(home, study.spec)
        trackers.trials, trackers.say = len(study.state.trials), say
        if warning := trackers.complete(one_attempt=one_attempt):
            log.warning("%s", warning)


def completed_place(home: Home, study: Study) -> ProjectionPlace | None:
    with suppress(OSError, StorageError):  # a home that is only read
        complete_copy(home, study, log.info, one_attempt=True)
    return read_place(home.study_folder(study.name))


def complete_copies(home: Home) -> list[str]:
    """Have a process complete, in its own time, what is missing of a home's copies; returns whose they are."""
    specs: dict[str, StudySpec] = {}
    with closing(home.read_journal()) as journal:
        for name in incomplete_copies(home.folder / "studies"):
            with suppress(HpoError):  # a study that is no more
                if not has_other_controller(journal.info(name).owner):
                    specs[name] = Study.current_spec(name, journal)
    for spec in list(specs.values())[:1]:
        begun = Trackers(home, spec)  # it goes on with the others
        begun.is_awaited = False
        begun.complete()
    return list(specs)
