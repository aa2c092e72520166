"""The controller's end of the process that shows its study in Prefect (``prefect_follower.py``).

A study neither waits for Prefect nor imports it: what happens in Prefect delays and ends the pages alone.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.model.short_text import cut
from hpo_core.security.private_files import open_private
from hpo_core.spec import StudySpec
from hpo_core.spec.sent_functions import short_name

LOG = "prefect.log"
"""What that process says, in the study's folder."""
ERROR_LENGTH = 4_000
"""Characters of an error that are told: a pipe takes so much without somebody who reads."""
RESTARTS = 2
"""Most processes that follow one that was killed: where memory is short, the next one may be killed as well."""
_MOST_SHOWN = 20_000
"""Most characters of a setting among the parameters of a flow run."""
SHOWN, CANCEL = 0, 1
"""What the process tells besides texts: the flow run is there; somebody cancelled it."""
WAIT_SECONDS = 60.0
"""How long a command without a terminal waits for it at the end: what comes next in a script may look there."""


class ShowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to show of a study, and in which Prefect."""

    study: str
    action: str
    """tune, resume, extend or rerun; begins the name of the flow run."""
    start: int
    """The first entry to show."""
    began: float
    """When the command began, in seconds since the epoch."""
    parameters: dict[str, Any] = {}
    """Parameters of the flow run; see :func:`shown_parameters`."""
    tags: list[str] = []
    server_folder: str = ""
    """Folder of the home's own server; empty: the API that the settings name."""
    runs_folder: str
    """Where flow runs that are shown are noted, see ``hpo_flows.prefect_pages.shown_runs``."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a controller ended, for the flow run's final state."""

    interrupted: bool = False
    error: str = ""
    """One line; empty where nothing failed."""
    links: dict[str, str] = {}
    """Title to target, see ``StudyPages.finish``."""


class PrefectProcess:
    """A process that shows a study in Prefect from now on.

    Args:
        folder: of the study.
        journal: URL of the journal.
        environment: of that process.
        on_shown: called, from another thread, once the flow run is there.
        on_cancel: called likewise, once, when somebody cancelled the flow run.
        say: called likewise with what a person should know.
    """

    def __init__(
        self,
        shown: ShowRequest,
        folder: Path,
        *,
        journal: str,
        environment: Mapping[str, str],
        on_shown: Callable[[], None],
        on_cancel: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._on_shown = on_shown
        self._on_cancel = on_cancel
        self._say = say
        self._log = folder / LOG
        # arguments of a process can be read by every user of the machine
        self._shown = tempfile.TemporaryFile()  # noqa: SIM115 - each process that is started reads it
        self._shown.write(msgspec.json.encode(shown))
        self._shown.flush()
        self._command = [
            sys.executable,
            "-P",
            "-m",
            "hpo_flows.prefect_pages.prefect_follower",
            str(self._shown.fileno()),
        ]
        self._environment = {**environment, "HPO_JOURNAL": journal}
        self._lock = threading.Lock()
        """Held where the process is replaced, told of the end, or tells."""
        self._ending = b""
        self._code: int | None = None
        self._process = self._start()
        self._listener = threading.Thread(target=self._listen, name="prefect-process", daemon=True)
        self._listener.start()

    def _start(self) -> subprocess.Popen[bytes]:
        with open_private(self._log, "ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the controller's: it tells how the study ended
                env=self._environment,
                pass_fds=(self._shown.fileno(),),
            )

    def _listen(self) -> None:
        """Hear what the process tells, and replace it where it was killed, until one ends by itself."""
        for left in reversed(range(RESTARTS + 1)):
            self._hear()
            code = self._process.wait()
            if code >= 0 or not left:
                break
            with self._lock:
                try:
                    self._process = self._start()
                except OSError:
                    break
                if self._ending:
                    self._tell_end()
                else:
                    self._say("The process that shows this study in Prefect was killed; another one begins.")
        self._code = code
        if not self._ending and code != 0:
            self._say(f"Prefect shows this study no longer (see {self._log}); the study goes on.")

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, str):
                    self._say(told)
                    continue
                with self._lock:
                    if self._ending:  # the summary has been printed: an address below it says nothing new
                        continue
                self._on_cancel() if told == CANCEL else self._on_shown()

    def end(self, *, interrupted: bool = False, error: str = "", links: Mapping[str, str] | None = None) -> None:
        """Say how the study ended, and wait no longer; the first call counts."""
        told = msgspec.json.encode(Ending(interrupted=interrupted, error=error, links=dict(links or {})))
        with self._lock:
            if not self._ending:
                self._ending = told
                self._tell_end()

    def _tell_end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it ended already
            self._process.stdin.write(self._ending)
            self._process.stdin.close()

    def wait(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until Prefect has it all, not longer than this; whether it has.

        Ctrl-C ends the wait alone: the study has ended, and its exit code stands.
        """
        with contextlib.suppress(KeyboardInterrupt):
            self._listener.join(timeout=seconds)
        return self._code == 0


def tags_of(spec: StudySpec) -> list[str]:
    """Tags of a study's flow run: a list of runs is filtered by them."""
    return ["hpo", spec.study, spec.search.method, *([f"pool {spec.pool_name}"] if spec.pool_name else [])]


def shown_parameters(spec: StudySpec) -> dict[str, Any]:
    """Parameters of the flow run of a study that no form describes: its name, and what of its file is not as usual.

    Values of thousands of entries (a record, partitions) are cut: a Prefect server takes half a megabyte.
    """
    usual = {name: field.get_default(call_default_factory=True) for name, field in StudySpec.model_fields.items()}
    said = {name: value for name, value in spec.plain().items() if getattr(spec, name) != usual[name]}
    found: dict[str, Any] = {"name": said.pop("study")}
    for name, value in said.items():
        if isinstance(value, str):
            value = short_name(value)  # of a function that was sent by value
        text = json.dumps(value)
        found[name] = value if len(text) <= _MOST_SHOWN else cut(text)
    return found
