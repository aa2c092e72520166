"""Without its Prefect server a study goes on and ends; only its picture stops.

Prefect (3.8.8) waits for a server that is gone: its client tries every request six times, over a minute, and asks for
the slots of task runs' tags one task run at a time; at the process's end every event is sent again for ten seconds.
A finished study of 300 jobs would keep its process for hours. So while the server is gone nothing is tried twice, no
task run is started, and a study that ends then ends its process too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextvars import copy_context

from prefect.settings import get_current_settings

from hpo_core.model.trial import Job, Report
from hpo_flows.prefect_api.connection import PrefectServerError, check_api

LOOK_SECONDS = 2.0
RETURN_SECONDS = 15.0
"""How long the end of a study waits for a server that is gone: what runs there should be shown as ended."""
LEAVE_SECONDS = 25.0
"""How long a process then has left."""
_LEAVING = "leave"
_code = 0
_gone = False
_usual = get_current_settings().client.max_retries


def gone() -> bool:
    """Whether the API did not answer when it was looked at last: task runs would wait for it."""
    return _gone


def look() -> bool:
    """Whether the API answers; if not, Prefect's client is told to try everything once only, until it does."""
    global _gone
    settings = get_current_settings()
    if settings.api.url is None:
        return True
    for again in (True, False):
        try:
            check_api(settings.api.url)
        except PrefectServerError:
            if again:
                time.sleep(0.5)
        else:
            settings.client.max_retries = _usual
            _gone = False
            return True
    settings.client.max_retries = 0
    _gone = True
    return False


def wait_for_return() -> bool:
    """Whether the API answers, now or within a quarter of a minute; if not, this process is going to end."""
    deadline = time.monotonic() + RETURN_SECONDS
    while not look():
        if time.monotonic() > deadline:
            leave(1)
            return False
        time.sleep(LOOK_SECONDS)
    return True


def leave(code: int) -> None:
    """End this process soon, whatever Prefect still waits for, unless the API is there again by then.

    Said twice, the first time counts and the last code.
    """
    global _code
    _code = code
    if not any(thread.name == _LEAVING for thread in threading.enumerate()):
        threading.Thread(target=copy_context().run, args=(_leave,), name=_LEAVING, daemon=True).start()


def _leave() -> None:
    time.sleep(LEAVE_SECONDS)
    if not look():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_code)


class ApiWatch:
    """An observer that looks every other second, in a thread of its own."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._thread: threading.Thread | None = None

    def on_report(self, report: Report, granted: list[Job]) -> None:
        """Results change nothing here."""

    def on_tick(self) -> None:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS and (self._thread is None or not self._thread.is_alive()):
            self._looked = now
            self._thread = threading.Thread(target=copy_context().run, args=(look,), name="api-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Nothing is open."""
