"""A Prefect API for studies started by hand where none is configured.

Prefect's own ephemeral mode prints tracebacks at exit and leaves orphans after ``kill -9``; this starts the same
server with its log in a file, lets it write the last states, and ends it.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from uuid import UUID

from hpo_core.errors import HpoError

_START_SECONDS = 90.0
_PAGE = 200


class PrefectServerError(HpoError):
    """The temporary Prefect API did not come up."""


def configured_api() -> str | None:
    """URL of the Prefect API the user's settings name, or None."""
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    from prefect.settings import get_current_settings

    return get_current_settings().api.url


def check_api(url: str) -> None:
    """Whether the configured Prefect API answers; better asked before anything is started.

    Raises:
        PrefectServerError: it does not.
    """
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=10):
            return
    except urllib.error.HTTPError:
        return  # somebody answers; whether we may use it, Prefect's client will say
    except (OSError, ValueError) as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return  # a certificate of your own: Prefect's client knows it, this question does not
        raise PrefectServerError(
            f"No Prefect API answers at {url} ({error}). Start it or mend PREFECT_API_URL; with no API configured "
            "a temporary one is started for the study."
        ) from None


class TemporaryPrefectServer:
    """``prefect server start`` on a free port of 127.0.0.1, with its database below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Begin to start, and point this process's environment at it (before prefect is imported)."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        os.environ.update(
            PREFECT_HOME=str(self._folder),
            PREFECT_API_URL=f"{self.url}/api",
            PREFECT_SERVER_ANALYTICS_ENABLED="false",
            DO_NOT_TRACK="1",
            PREFECT_CLI_COLORS="false",
            PREFECT_UI_STATIC_DIRECTORY=str(self._folder / "ui"),  # site-packages may be read-only
        )
        listed = f"{os.environ.get('NO_PROXY', '')},{os.environ.get('no_proxy', '')}"
        local = {"127.0.0.1", "localhost"} | set(filter(None, listed.split(",")))
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(sorted(local))
        environment = os.environ | {
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "50",
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
        }
        # The server must not outlive a controller that was killed: it watches this pipe.
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flows.prefect_server", str(port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Return when the API answers.

        Raises:
            PrefectServerError: it ended or stayed silent; the message names its log.
        """
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/api/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.1)
        log = self._folder / "server.log"
        tail = log.read_text(errors="replace")[-1500:]
        self.stop()
        raise PrefectServerError(
            f"The temporary Prefect API did not come up at {self.url} within {_START_SECONDS:.0f} s. Its log "
            f"({log}) ends:\n{tail}\nMend that, or name a running server in PREFECT_API_URL."
        )

    def stop(self) -> None:
        """End the server and wait for it."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def settle(flow_run: str, task_runs: int, seconds: float = 20.0) -> bool:
    """Wait until the API holds the final state of every task run; whether it does.

    States travel asynchronously through this process, a websocket and the server's recorder. A temporary
    server that ended before that would show a finished study with task runs that run for ever.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.events.worker import EventsWorker

    EventsWorker.drain_all(timeout=seconds)
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run)]))
    deadline = time.monotonic() + seconds
    with get_client(sync_client=True) as client:
        while True:
            final = 0
            for offset in range(0, task_runs, _PAGE):
                runs = client.read_task_runs(flow_run_filter=wanted, limit=_PAGE, offset=offset)
                final += sum(run.state is not None and run.state.is_final() for run in runs)
            if final >= task_runs:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.3)
