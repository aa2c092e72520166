"""The processes that copy a study to MLflow and to an Optuna storage, and the wait for them at its end."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from hpo_core.home import Home
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.security.masking import without_credentials
from hpo_core.security.private_files import open_private
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.tracking.copy_progress import (
    CopyProgress,
    in_trouble,
    incomplete_copies,
    note_progress,
    read_progress,
    wait_for_copy,
)
from hpo_core.tracking.follower import FINISH, REQUEST, FollowRequest, has_other_controller, is_follower
from hpo_core.tracking.tracker_links import ProjectionPlace, experiments_url, optuna_links, read_place

log = logging.getLogger("hpo.session")

WAIT_SECONDS = 600.0
"""How long, at most, the end of a study that somebody awaits waits for its copies; in a terminal nobody does."""
SHORT_WAIT_SECONDS = 0.5
"""How long the report of a study that nobody awaits waits for its run in MLflow, to link to it."""

TrackerName = Literal["MLflow", "Optuna"]


class Trackers:
    """MLflow and Optuna are fed by processes of their own that read the journal: they cannot slow or stop the search.

    Args:
        journal_url: with its password; default: that of the home.
    """

    def __init__(self, home: Home, spec: StudySpec, *, journal_url: str = "") -> None:
        self._home = home
        self._spec = spec
        self._study = spec.study
        self._folder = home.study_folder(spec.study)
        self._journal_url = journal_url or home.journal_url
        self._processes: dict[TrackerName, subprocess.Popen[bytes]] = {}
        self.is_awaited = True
        """Whether the end waits until the copies are complete; else their processes go on after this one's end."""
        self.trials = 0
        """Trials of the study, for words about the copies."""
        self.say: Callable[[str], None] = log.info
        """Told how far the copies are while the end waits for them."""

    def start(self) -> None:
        """Start a process for each tracker that the study names."""
        for tracker, uri in self._wanted().items():
            self._follow(tracker, uri)

    def finish(self, seconds: float | None = None) -> str | None:
        """Have the copies completed, and wait for that; returns a warning where one is not. Safe to call twice.

        The processes are not ended: what is left is copied after this one's end.

        Args:
            seconds: longest wait; None: :data:`WAIT_SECONDS` where it is awaited.
        """
        until = time.monotonic() + (self._seconds if seconds is None else seconds)
        ending, self._processes = self._processes, {}
        for process in ending.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # it ended already
                    process.stdin.write(FINISH)
                    process.stdin.close()
        warnings = []
        for tracker, process in ending.items():
            goes_on = partial(_goes_on, process)
            warnings.append(self._wait(tracker, until - time.monotonic(), process.pid, goes_on))
        return "\n".join(filter(None, warnings)) or None

    def complete(self) -> str | None:
        """Complete the copies of a study that nobody drives where they are not, and wait as :meth:`finish` does."""
        for tracker, uri in self._wanted().items():
            known = read_progress(self._folder, tracker)
            if known is None:  # never copied, or before there was such a file
                known = CopyProgress(complete=tracker == "Optuna" or read_place(self._folder) is not None)
            if known.complete:
                continue
            if not is_follower(known.process):
                self._follow(tracker, uri)
            elif warning := self._wait(tracker, self._seconds, None, partial(is_follower, known.process)):
                return warning
        return self.finish()

    @property
    def _seconds(self) -> float:
        return WAIT_SECONDS if self.is_awaited else 0.0

    def _wait(self, tracker: TrackerName, seconds: float, process: int | None, goes_on: Callable[[], bool]) -> str:
        if not self.is_awaited and goes_on() and not in_trouble(self._folder, tracker):
            known = read_progress(self._folder, tracker) or CopyProgress()
            if not known.complete or process not in (None, known.process):
                self.say(f"{known.words(tracker, self.trials)}; this goes on in the background")
            return ""
        why = wait_for_copy(
            self._folder, tracker, by=process, trials=self.trials, seconds=seconds, say=self.say, goes_on=goes_on
        )
        return why and self._warning(tracker, why)

    def _warning(self, tracker: TrackerName, why: str) -> str:
        return (
            f"Study {self._study!r} is not complete in {tracker} yet ({why}; log: {self._log(tracker)}). Nothing is "
            f"lost: `hpo project {self._study}`, `hpo ui` and the next study of this home complete it."
        )

    def _wanted(self) -> dict[TrackerName, str]:
        """Where the study is copied to."""
        wanted: dict[TrackerName, str] = {}
        uri = self._home.tracking_uri(self._spec)
        if uri is not None and find_spec("mlflow") is None:
            log.warning(
                "study %r is not shown in MLflow, which is not installed: `pip install 'hpo-core[mlflow]'`, then "
                "`hpo project %s` catches up; or set tracking.mlflow to off.",
                self._study,
                self._study,
            )
        elif uri is not None:
            wanted["MLflow"] = uri
        try:
            storage = self._home.optuna_storage(self._spec)
        except SpecError as error:  # the home's databases are other ones since the study was created
            log.warning("study %r is not copied to Optuna: %s", self._study, error)
        else:
            if storage is not None:
                wanted["Optuna"] = storage
        return wanted

    def _follow(self, tracker: TrackerName, uri: str) -> None:
        """A process for each tracker: one that is slow or away holds up neither the search nor the other."""
        request = FollowRequest(
            journal=self._journal_url,
            study=self._study,
            folder=str(self._folder),
            tracker="mlflow" if tracker == "MLflow" else "optuna",
            uri=uri,
            experiment=self._spec.tracking.experiment,
            artifact_location=self._home.artifact_location(self._spec),
            home=str(self._home.folder),
        )
        note_progress(self._folder, tracker, CopyProgress())  # should the process never get that far
        with open_private(self._log(tracker), "ab") as output:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            output.write(f"{now} a process is started for {tracker} at {without_credentials(uri)}\n".encode())
            output.flush()
            self._processes[tracker] = subprocess.Popen(
                [sys.executable, "-m", "hpo_core.tracking.follower", str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | {REQUEST: msgspec.json.encode(request).decode()},
            )

    def _log(self, tracker: str) -> Path:
        return self._folder / f"{tracker.lower()}.log"

    def mlflow_run(self, wait: float = 0.0) -> ProjectionPlace | None:
        """Where the study's MLflow run is; ``wait`` seconds at most for its process to make it, if it can at all."""
        deadline = time.monotonic() + wait
        while (place := read_place(self._folder)) is None:
            if not self._follows_mlflow or in_trouble(self._folder) or time.monotonic() >= deadline:
                return None
            time.sleep(0.1)
        return place

    @property
    def _follows_mlflow(self) -> bool:
        process = self._processes.get("MLflow")
        return process is not None and process.poll() is None

    def links(self) -> dict[str, str]:
        """To the study in each tracker, for its report."""
        found: dict[str, str] = {}
        place = self.mlflow_run(wait=self._seconds or SHORT_WAIT_SECONDS)
        if place is not None:
            found["MLflow"] = place.url
        elif self._follows_mlflow and not in_trouble(self._folder):
            found["MLflow"] = experiments_url(self._home.tracking_uri(self._spec) or "")
        return found | optuna_links(self._home, self._spec)


def _goes_on(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is None


def complete_copies(home: Home) -> list[str]:
    """Have a process complete, in its own time, what is missing of a home's copies; returns whose they are."""
    names: list[str] = []
    begun: Trackers | None = None
    for name in dict.fromkeys(name for name, _ in incomplete_copies(home.folder / "studies")):
        try:
            with contextlib.closing(home.read_journal()) as journal:
                owner, spec = journal.info(name).owner, Study.current_spec(name, journal)
        except HpoError:  # a study that is no more
            continue
        if has_other_controller(owner):
            continue
        names.append(name)
        if begun is None:  # it goes on with the others
            begun = Trackers(home, spec)
            begun.is_awaited = False
            begun.complete()
    return names
