"""API watch: a study goes on without its Prefect server, and its process ends.

Without the server only the pages in the Prefect UI stop.

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

from hpo_flows.prefect_api.connection import PrefectServerError, check_api

ASK_SECONDS = 2.0
RETURN_SECONDS = 15.0
"""How long the end of a study waits for a server that is gone: what runs there should be shown as ended."""
END_SECONDS = 10.0
"""Seconds until such a process ends."""
_ENDING = "end-process"
_code = 0
_unreachable = False
_usual = get_current_settings().client.max_retries


def api_is_unreachable() -> bool:
    """Whether the API did not answer the last time it was asked: task runs would wait for it."""
    return _unreachable


def api_answers() -> bool:
    """Ask the API whether it answers; if not, Prefect's client tries each request only once until it does."""
    global _unreachable
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
            _unreachable = False
            return True
    settings.client.max_retries = 0
    _unreachable = True
    return False


def wait_for_return(seconds: float = RETURN_SECONDS, *, or_end: bool = True) -> bool:
    """Wait for the API, 15 s at most by default; whether it answers.

    Args:
        or_end: this process ends soon where it does not.
    """
    deadline = time.monotonic() + seconds
    while not api_answers():
        if time.monotonic() > deadline:
            if or_end:
                end_process_soon(1)
            return False
        time.sleep(ASK_SECONDS)
    return True


def end_process_soon(code: int) -> None:
    """End this process soon, whatever Prefect still waits for, unless the API is there again by then.

    Called twice, the time of the first call counts and the code of the last.
    """
    global _code
    _code = code
    if not any(thread.name == _ENDING for thread in threading.enumerate()):
        threading.Thread(target=copy_context().run, args=(_end_process,), name=_ENDING, daemon=True).start()


def _end_process() -> None:
    time.sleep(END_SECONDS)
    if not api_answers():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_code)
