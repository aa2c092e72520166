"""Starts Prefect's UI and MLflow of a home and the list of its reports, prints where they are, and ends them."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec

from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_core.model.features import FEATURES, feature
from hpo_core.security.private_files import LockFile, open_private
from hpo_core.terminal.without_terminal import interrupt_at_end
from hpo_flows.prefect_api.connection import client_environment, configured_api
from hpo_flows.prefect_api.shared_server import SharedServer

Say = Callable[[str], None]
_END_SECONDS = 15.0


def serve_home(home: Home, say: Say) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP; where another one serves this home, say where and return.

    Addresses are said with their passwords, as Jupyter does: each start makes new ones.
    """
    folder = home.make_folder("ui")
    lock = LockFile(folder / f"ui-{socket.gethostname()}.lock", "`hpo ui`")
    if not lock.take(fcntl.LOCK_EX):
        say("Another `hpo ui` serves this home:")
        say(lock.read() or "its addresses are not known yet")
        lock.close()
        return
    interrupt_at_end()
    with ExitStack() as stack:
        stack.callback(lock.close)
        try:
            said = list(_start(home, stack, say))
            lock.write("\n".join(said))
            for line in said:
                say(line)
            say("Studies of this home that are started now show in this Prefect. Ctrl-C ends it.")
            threading.Event().wait()
        except KeyboardInterrupt:
            say("ending ...")
        finally:
            lock.write("")


def _start(home: Home, stack: ExitStack, say: Say) -> Iterator[str]:
    if "report" in FEATURES:
        reports = feature("report", "study_page").ReportFiles(home)
        reports.write()
        threading.Thread(target=reports.follow, daemon=True).start()
    prefect: SharedServer | None = None
    if (api := configured_api()) is None and find_spec("prefect") is not None:
        say("starting Prefect's server and MLflow, which takes 10 to 40 s ...")
        prefect = SharedServer(home.folder / "prefect")
        prefect.start()
        stack.callback(prefect.close)
    if "MLflow" in FEATURES and (missing := feature("MLflow", "trackers").complete_copies(home)):
        say(f"copying to MLflow what is missing of {', '.join(missing)} ...")
    mlflow = stack.enter_context(_mlflow(home))
    if prefect is not None:
        prefect.wait()
        _end_killed_runs(home, prefect, say)
        yield f"Prefect: {prefect.url} (password {prefect.auth})"
    elif api is not None:
        yield f"Prefect: {api.removesuffix('/api')} (named by your settings)"
    yield f"MLflow:  {mlflow}"
    if "report" in FEATURES:
        yield f"Reports: {reports.path}"


def _end_killed_runs(home: Home, server: SharedServer, say: Say) -> None:
    """Runs whose process was killed look as if they went on."""
    os.environ.update(client_environment(server.folder))
    from prefect.client.orchestration import SyncPrefectClient

    from hpo_flows.prefect_pages.read_back import end_killed_runs

    try:
        with SyncPrefectClient(server.api_url, auth_string=server.auth) as client:
            crashed = end_killed_runs(client, home.folder)
    except Exception as error:  # pages are served all the same, and the next study ends them
        say(f"Flow runs whose process was killed may still look Running ({type(error).__name__}: {error}).")
        return
    if crashed:
        say(f"Flow runs whose process was killed, Crashed in Prefect now: {crashed:,}.")


@contextmanager
def _mlflow(home: Home) -> Iterator[str]:
    """MLflow's address; its own server is used where studies name one."""
    uri = home.default_tracking_uri
    if not uri.startswith("sqlite:"):
        yield f"{uri} (named by your settings)"
        return
    if find_spec("mlflow") is None:
        yield "not installed: pip install 'hpo-core[mlflow]'"
        return
    auth = f"hpo:{secrets.token_urlsafe(24)}"
    folder = home.make_folder("ui")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with open_private(folder / "mlflow.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hpo_flows.guarded_server", str(reserved.fileno())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_mlflow_environment(home, uri),
                pass_fds=(reserved.fileno(),),
                umask=0o077,
                start_new_session=True,
            )
    assert process.stdin is not None
    try:
        process.stdin.write(f"{auth}\n".encode())
        process.stdin.flush()
        user, _, password = auth.partition(":")
        yield f"http://127.0.0.1:{port} (user {user}, password {password})"
    finally:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _mlflow_environment(home: Home, uri: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HPO_", "MLFLOW_"))}
    artifacts = home.artifacts_at(uri)
    if artifacts is None:
        raise HpoError(f"MLflow at {uri} has no folder of artifacts here; name its server in MLFLOW_TRACKING_URI.")
    return kept | {
        "_MLFLOW_SERVER_FILE_STORE": uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": uri,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": artifacts,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }
