"""The Prefect API that shows a study: one that the user's settings name, or the home's own (``shared_server.py``)."""

from __future__ import annotations

import base64
import os
import ssl
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpo_core.model.errors import HpoError

_CURE = "or run without Prefect: --no-prefect, or prefect: off."
DRAIN_SECONDS = 5.0
"""Longest wait for what was told to an API before another one is used."""
NO_EPHEMERAL_SERVER = {"PREFECT_SERVER_EPHEMERAL_ENABLED": "false"}


class PrefectServerError(HpoError):
    """The Prefect API does not answer, did not come up, or is gone."""


def configured_api() -> str | None:
    """URL of the Prefect API the user's settings name (environment, profile, .env, prefect.toml), or None.

    Where some file may name one, Prefect is imported to say so, and keeps the settings that it finds at this moment:
    see ``point_prefect_at``.
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
    if any(path.exists() for path in (profiles, Path(".env"), Path("prefect.toml"))):
        return True
    try:
        return "prefect" in tomllib.loads(Path("pyproject.toml").read_text()).get("tool", {})
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def check_api(url: str, seconds: float = 10.0) -> None:
    """Ask whether the configured Prefect API answers, before anything is started.

    Raises:
        PrefectServerError: it does not.
    """
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=seconds):
            return
    except (OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code < 500:
            return  # somebody answers; whether we may use it, Prefect's client will say
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return  # a certificate of your own: Prefect's client knows it, this question does not
        raise PrefectServerError(
            f"No Prefect API answers at {url} ({error}). Start it or mend PREFECT_API_URL; with no API configured "
            f"one is started for the study; {_CURE}"
        ) from None


def check_access(url: str) -> None:
    """Ask whether the configured Prefect API takes the password that the settings give.

    Raises:
        PrefectServerError: it wants one, or another one.
    """
    given = os.environ.get("PREFECT_API_AUTH_STRING")
    if _admits(url, given) is not False:
        return
    from prefect.settings import Settings  # takes a second or more, and seldom says more

    api = Settings().api
    if api.key is not None:
        return  # Prefect Cloud, which asks otherwise
    given = api.auth_string.get_secret_value() if api.auth_string is not None else None
    if _admits(url, given) is False:
        wrong = "wants a password" if given is None else "does not take the password of PREFECT_API_AUTH_STRING"
        raise PrefectServerError(
            f"The Prefect API at {url} {wrong}. Set PREFECT_API_AUTH_STRING to what its own "
            f"PREFECT_SERVER_API_AUTH_STRING is; {_CURE}"
        )


def _admits(url: str, password: str | None) -> bool | None:
    # True if it takes this password (None: it takes us without one); None where that is seen later.
    headers = {} if password is None else {"Authorization": "Basic " + base64.b64encode(password.encode()).decode()}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url.rstrip('/')}/admin/version", headers=headers), timeout=10
        ):
            return True
    except urllib.error.HTTPError as error:
        return False if error.code == 401 else None
    except (OSError, ValueError):
        return None  # check_api has seen it; what it does later is seen later


def client_environment(folder: Path | None = None) -> dict[str, str]:
    """Environment of a process that shows a study in Prefect.

    Without an URL, Prefect would start a server of its own, which outlives a ``kill -9``.

    Args:
        folder: of the home's own server; None: the API that the settings name.
    """
    if folder is None:
        return NO_EPHEMERAL_SERVER
    listed = f"{os.environ.get('NO_PROXY', '')},{os.environ.get('no_proxy', '')}"
    local = ",".join(sorted({"127.0.0.1", "localhost"} | set(filter(None, listed.split(",")))))
    return NO_EPHEMERAL_SERVER | {
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
"""Further tries of a request that failed."""


@contextmanager
def patient_prefect(api_url: str | None = None, auth: str = "") -> Iterator[None]:
    """Have all of Prefect in this process wait for its API for a limited time while this is open.

    Not by environment variables: the processes of a study inherit those, and its training functions print them.

    Args:
        api_url: use this API; None: that of the settings.
        auth: its password.
    """
    from prefect import context
    from prefect.events.clients import PrefectEventsClient
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_REQUEST_TIMEOUT,
        PREFECT_API_URL,
        PREFECT_CLIENT_CSRF_SUPPORT_ENABLED,
        PREFECT_CLIENT_MAX_RETRIES,
        PREFECT_SERVER_EPHEMERAL_ENABLED,
    )

    before, client = context.GLOBAL_SETTINGS_CONTEXT, EventsWorker._client_override
    updates: dict[Any, Any] = {
        PREFECT_API_REQUEST_TIMEOUT: REQUEST_SECONDS,
        PREFECT_CLIENT_MAX_RETRIES: REQUEST_TRIES,
        PREFECT_SERVER_EPHEMERAL_ENABLED: False,
    }
    if api_url is not None:
        updates |= {
            PREFECT_API_URL: api_url,
            PREFECT_API_AUTH_STRING: auth,
            PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: True,
        }
    settings = before.settings.copy_with_update(updates=updates)
    # of the process, not of this thread: Prefect's own threads begin with an empty context
    context.GLOBAL_SETTINGS_CONTEXT = context.SettingsContext(profile=before.profile, settings=settings)
    if settings.api.key is None:  # by default each event that a dead server does not take is tried again for seconds
        EventsWorker.set_client_override(PrefectEventsClient, reconnection_attempts=0)
    try:
        with context.SettingsContext(profile=before.profile, settings=settings):
            yield
    finally:
        seconds = DRAIN_SECONDS if settings.client.max_retries else 0.0  # none: the API is away, see api_watch.py
        for worker in (EventsWorker, APILogWorker):  # what comes next in this process may go to another API
            worker.drain_all(timeout=seconds)
        context.GLOBAL_SETTINGS_CONTEXT = before
        EventsWorker._client_override = client
