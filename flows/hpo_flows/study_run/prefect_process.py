"""PrefectProcess: the controller's end of the process that shows its study in Prefect.

A study neither waits for Prefect nor imports it: what happens in Prefect delays and ends the pages alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hpo_core.security.private_files import open_private

LOG = "prefect.log"
"""What that process says, in the study's folder."""
ERROR_LENGTH = 4_000
"""Characters of an error that are told: a pipe takes so much without somebody who reads."""
WAIT_SECONDS = 60.0
"""How long a command without a terminal waits for it at the end: what comes next in a script may look there."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown, and in which Prefect."""

    study: str
    action: str
    """tune, resume, extend or rerun; begins the name of the flow run."""
    start: int
    """The first entry to show."""
    server_folder: str = ""
    """Of the home's own server; empty: the API that the settings name."""
    start_timeout: float = 300.0
    """See ``SharedServer``."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a controller ended, for the flow run's final state."""

    interrupted: bool = False
    error: str = ""
    """One line; empty where nothing failed."""
    links: dict[str, str] = {}
    """Title to target, see ``StudyArtifacts.finish``."""


class PrefectProcess:
    """A process that shows a study in Prefect from now on.

    Args:
        folder: of the study.
        journal: URL of the journal.
        on_shown: called, from another thread, once the flow run is there.
        say: called likewise with what a person should know.
    """

    def __init__(
        self,
        shown: Shown,
        folder: Path,
        *,
        journal: str,
        on_shown: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._on_shown = on_shown
        self._say = say
        self._log = folder / LOG
        self._ending = False
        with open_private(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hpo_flows.study_run.prefect_follower", msgspec.json.encode(shown)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the controller's: it tells how the study ended
                env=os.environ | {"HPO_JOURNAL": journal},
            )
        threading.Thread(target=self._listen, name="prefect-process", daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                text = json.loads(line)
                if text is None:
                    self._on_shown()
                else:
                    self._say(text)
        if not self._ending and self._process.wait() != 0:
            self._say(f"Prefect shows this study no longer (see {self._log}); the study goes on.")

    def end(self, *, interrupted: bool = False, error: str = "", links: Mapping[str, str] | None = None) -> None:
        """Say how the study ended, and wait no longer; the first call counts."""
        if self._ending:
            return
        self._ending = True
        assert self._process.stdin is not None
        told = msgspec.json.encode(Ending(interrupted=interrupted, error=error, links=dict(links or {})))
        with contextlib.suppress(OSError):  # it ended already
            self._process.stdin.write(told)
            self._process.stdin.close()

    def wait(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until Prefect has it all, not longer than this; whether it has.

        Ctrl-C ends the wait alone: the study has ended, and its exit code stands.
        """
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            return self._process.wait(timeout=seconds) == 0
        return False
