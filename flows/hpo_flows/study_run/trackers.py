"""The processes that copy a study to MLflow and to an Optuna storage while it runs."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.security.private_files import open_private
from hpo_core.spec import StudySpec
from hpo_core.tracking.follower import FINISH, REQUEST, FollowRequest
from hpo_core.tracking.tracker_links import ProjectionPlace, experiments_url, in_trouble, optuna_links, read_place

log = logging.getLogger("hpo.session")

DRAIN_SECONDS = 20.0
"""How long the end of a study waits for a tracker to hold everything; `hpo project` does the rest."""

MODEL_SECONDS = 60.0
"""How much longer where the best model is built and saved in MLflow's format (``build``)."""

SHORT_WAIT_SECONDS = 0.5
"""How long the report of a study that nobody awaits waits for its run in MLflow, to link to it."""


class Trackers:
    """MLflow and Optuna are fed by processes of their own that read the journal: they cannot slow or stop the search.

    Args:
        folder: of the study.
        journal_url: with its password.
    """

    def __init__(self, home: Home, spec: StudySpec, *, folder: Path, journal_url: str) -> None:
        self._home = home
        self._spec = spec
        self._study = spec.study
        self._folder = folder
        self._journal_url = journal_url
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """By tracker."""
        self.is_awaited = True
        """Whether the end waits until MLflow holds everything; else what is left is done after this process's end."""

    def start(self) -> None:
        """Start a process for each tracker that the study names."""
        self._start_mlflow()
        self._start_optuna()

    def _start_mlflow(self) -> None:
        uri = self._home.tracking_uri(self._spec)
        if uri is None:
            return
        if find_spec("mlflow") is None:
            log.warning(
                "study %r is not shown in MLflow, which is not installed: `pip install 'hpo-core[mlflow]'`, then "
                "`hpo project %s` catches up; or set tracking.mlflow to off.",
                self._study,
                self._study,
            )
            return
        self._follow("MLflow", uri)

    def _start_optuna(self) -> None:
        """A storage that is slow or away holds up neither the search nor MLflow."""
        try:
            url = self._home.optuna_storage(self._spec)
        except SpecError as error:  # the home's databases are other ones since the study was created
            log.warning("study %r is not copied to Optuna: %s", self._study, error)
            return
        if url is not None:
            self._follow("Optuna", url)

    def _follow(self, tracker: Literal["MLflow", "Optuna"], uri: str) -> None:
        request = FollowRequest(
            journal=self._journal_url,
            study=self._study,
            folder=str(self._folder),
            tracker="mlflow" if tracker == "MLflow" else "optuna",
            uri=uri,
            experiment=self._spec.tracking.experiment,
            artifact_location=self._home.artifact_location(self._spec),
            drain=self._drain_seconds,
        )
        with open_private(self._log(tracker), "ab") as output:
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

    @property
    def _drain_seconds(self) -> float:
        return DRAIN_SECONDS + (MODEL_SECONDS if self._spec.build is not None else 0.0)

    def finish(self, seconds: float | None = None) -> str | None:
        """Let each catch up, for so many seconds at most; returns a warning where one could not. Safe to call twice."""
        seconds = self._drain_seconds if seconds is None else seconds
        ending, self._processes = self._processes, {}
        for process in ending.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # it ended already
                    process.stdin.write(FINISH)
                    process.stdin.close()
        warnings = []
        for tracker, process in ending.items():
            if not self.is_awaited and process.poll() is None and not in_trouble(self._folder, tracker):
                continue  # it has a limit of its own
            try:
                code = process.wait(timeout=seconds + 10)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            if code:
                warnings.append(
                    f"{tracker} has not everything yet (see {self._log(tracker)}); nothing is "
                    f"lost: `hpo project {self._study}` catches up once it is reachable."
                )
        return "\n".join(warnings) or None

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
        place = self.mlflow_run(wait=30.0 if self.is_awaited else SHORT_WAIT_SECONDS)
        if place is not None:
            found["MLflow"] = place.url
        elif self._follows_mlflow and not in_trouble(self._folder):
            found["MLflow"] = experiments_url(self._home.tracking_uri(self._spec) or "")
        return found | optuna_links(self._home, self._spec)
