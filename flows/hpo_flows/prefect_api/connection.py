"""The Prefect API that shows a study: one that the user's settings name, or the home's own (``shared_server.py``).

Prefect is imported within functions: its environment has to be set before, and a study without Prefect needs none.
"""

from __future__ import annotations

import base64
import http.client
import os
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpo_core.model.errors import HpoError

_CURE = "; with no API configured one is started for the study; or run without Prefect: --no-prefect, or prefect: off"
"""For whoever runs a study; ``hpo deploy`` and ``hpo worker`` need an API."""
DRAIN_SECONDS = 5.0
"""Longest wait for what was told to an API before another one is used."""


class PrefectServerError(HpoError):
    """The Prefect API does not answer, did not come up, or is gone."""


def configured_api() -> str | None:
    """URL of the Prefect API the user's settings name (environment, profile, .env, prefect.toml), or None.

    Where some file may name one, Prefect is imported to say so, and keeps the settings that it finds at this moment.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    if not _may_be_configured():
        return None
    from prefect.settings import Settings

    return Settings().api.url


def _may_be_configured() -> bool:
    """True if there is any file that Prefect reads settings from.

    To import Prefect takes a second or more; it leaves files in the user's home and prints about its telemetry.
    """
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    project = Path("pyproject.toml")
    named = project.is_file() and b"[tool.prefect" in project.read_bytes()
    return named or any(path.exists() for path in (profiles, Path(".env"), Path("prefect.toml")))


def answer_of(url: str, auth: str | None = None, *, seconds: float = 10.0, cure: str = "") -> int:
    """HTTP status with which an API answers to this password; 0: by a certificate that only Prefect's client knows.

    Raises:
        PrefectServerError: it does not answer, or is out of order.
    """
    headers = {} if auth is None else {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"}
    try:
        asked = urllib.request.Request(f"{url.rstrip('/')}/admin/version", headers=headers)
        ask = _direct.open if asked.host.partition(":")[0] in ("127.0.0.1", "localhost") else urllib.request.urlopen
        with ask(asked, timeout=seconds) as answer:
            return int(answer.status)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code < 500:
            return error.code
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return 0
        raise PrefectServerError(
            f"No Prefect API answers at {url} ({error}). Start it (`hpo ui`, `prefect server start`) or mend "
            f"PREFECT_API_URL{cure}."
        ) from None


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def check_api(url: str, cure: str = _CURE) -> None:
    """Ask the configured Prefect API, before anything is started.

    Args:
        cure: what else to do than to mend API or settings, begun by ``; ``; empty where nothing else helps.

    Raises:
        PrefectServerError: it does not answer, or does not take the password that the settings give.
    """
    given = os.environ.get("PREFECT_API_AUTH_STRING")
    if answer_of(url, given, cure=cure) != 401:
        return
    from prefect.settings import Settings  # takes a second or more, and seldom says more

    api = Settings().api
    if api.key is not None:
        return  # Prefect Cloud, which asks otherwise
    given = api.auth_string.get_secret_value() if api.auth_string is not None else None
    if answer_of(url, given, cure=cure) == 401:
        wrong = "wants a password" if given is None else "does not take the password of PREFECT_API_AUTH_STRING"
        raise PrefectServerError(
            f"The Prefect API at {url} {wrong}. Set PREFECT_API_AUTH_STRING to what its own "
            f"PREFECT_SERVER_API_AUTH_STRING is{cure}."
        )


def is_in_flow_run() -> bool:
    """True if the caller runs in a flow or task of Prefect, which then is imported."""
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext, TaskRunContext

    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def client_environment(folder: Path) -> dict[str, str]:
    """Environment of a process that shows a study in the home's own server, of this folder."""
    listed = f"{os.environ.get('NO_PROXY', '')},{os.environ.get('no_proxy', '')}"
    local = ",".join(sorted({"127.0.0.1", "localhost"} | set(filter(None, listed.split(",")))))
    return {
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",  # which outlives a `kill -9`
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_CLI_COLORS": "false",
        "NO_PROXY": local,
        "no_proxy": local,
    }


REQUEST_SECONDS = 10.0
"""Longest request: a server that hangs must not hold a study."""
REQUEST_TRIES = 2
"""Further tries of a request, or of the connection for events, that failed while a study runs."""
_patient: Any = None
"""Prefect's settings while ``patient_prefect`` is open."""


def wait_less() -> None:
    """Have requests tried less often than Prefect does, from the moment at which a study's flow run is made.

    Before, a busy server may refuse some; afterwards the study would wait. Without effect in a flow of the user's.
    """
    if _patient is not None:
        _patient.client.max_retries = REQUEST_TRIES


@contextmanager
def patient_prefect(own: tuple[str, str] | None = None) -> Iterator[None]:
    """Have all of Prefect in this process wait for its API for a limited time while this is open.

    Not by environment variables: the processes of a study inherit those, and its training functions print them.

    Args:
        own: URL and password of the home's own API; None: that of the settings.
    """
    global _patient
    from prefect import context
    from prefect.events.clients import PrefectEventsClient
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_REQUEST_TIMEOUT,
        PREFECT_API_URL,
        PREFECT_CLIENT_CSRF_SUPPORT_ENABLED,
        PREFECT_SERVER_EPHEMERAL_ENABLED,
    )

    before, client = context.GLOBAL_SETTINGS_CONTEXT, EventsWorker._client_override
    updates: dict[Any, Any] = {
        PREFECT_API_REQUEST_TIMEOUT: REQUEST_SECONDS,
        PREFECT_SERVER_EPHEMERAL_ENABLED: False,
    }
    if own is not None:
        updates |= {PREFECT_API_URL: own[0], PREFECT_API_AUTH_STRING: own[1], PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: True}
    _patient = settings = before.settings.copy_with_update(updates=updates)
    # of the process, not of this thread: Prefect's own threads begin with an empty context
    context.GLOBAL_SETTINGS_CONTEXT = context.SettingsContext(profile=before.profile, settings=settings)
    if settings.api.key is None:  # by default each event that a dead server does not take is tried again for seconds
        # without any further try, a server that was busy at the first loses all events that wait for the connection
        EventsWorker.set_client_override(PrefectEventsClient, reconnection_attempts=REQUEST_TRIES)
    try:
        with context.SettingsContext(profile=before.profile, settings=settings):
            yield
    finally:
        seconds = 0.0 if _unreachable else DRAIN_SECONDS
        for worker in (EventsWorker, APILogWorker):  # what comes next in this process may go to another API
            worker.drain_all(timeout=seconds)
        context.GLOBAL_SETTINGS_CONTEXT, _patient = before, None
        EventsWorker._client_override = client


ASK_SECONDS = 2.0
ANSWER_SECONDS = 5.0
"""An API that takes longer to say that it is well is away."""
HURRIED_SECONDS = 1.0
"""Longest request once nobody waits for the API any more."""
END_SECONDS = 3.0
"""Seconds until such a process ends."""
_unreachable = False


def api_is_unreachable() -> bool:
    """True if the API did not answer the last time it was asked: requests would wait for it."""
    return _unreachable


def api_answers(seconds: float = ANSWER_SECONDS) -> bool:
    """Ask the API whether it answers."""
    global _unreachable
    from prefect.settings import get_current_settings

    if (url := get_current_settings().api.url) is None:
        return True
    for again in (True, False):
        try:
            answer_of(url, seconds=seconds)
        except PrefectServerError:
            if again:
                time.sleep(0.5)
        else:
            _unreachable = False
            return True
    _unreachable = True
    return False


def wait_for_return(deadline: float) -> bool:
    """Wait for the API until a time of the monotonic clock; whether it answers."""
    while not api_answers(max(HURRIED_SECONDS, min(ANSWER_SECONDS, (deadline - time.monotonic()) / 2))):
        if time.monotonic() + ASK_SECONDS > deadline:
            return False
        time.sleep(ASK_SECONDS)
    return True


def wait_no_more() -> None:
    """Have what this process still asks of the API take a moment: a study has ended, and the API is away."""
    global _unreachable
    from prefect.context import FlowRunContext
    from prefect.settings import get_current_settings

    _unreachable = True
    settings = get_current_settings()
    settings.client.max_retries = 0
    settings.api.request_timeout = HURRIED_SECONDS
    if (context := FlowRunContext.get()) is not None:
        context.client._client.timeout = HURRIED_SECONDS  # of the flow's engine, which sets the final state


def end_process_soon(code: int) -> None:
    """End this process soon, whatever Prefect still waits for."""

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(END_SECONDS, end)
    timer.daemon = True
    timer.start()
