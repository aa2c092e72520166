"""API watch: a study goes on without its Prefect server, and its process ends.

Without the server only the pages in the Prefect UI stop.

Prefect (3.8.8) waits for a server that is gone: its client tries every request six times, over a minute, and at the
process's end every event is sent again for ten seconds. A finished study of 300 jobs would keep its process for hours.
So while the server is gone nothing is tried twice, and a study that ends then ends its process too.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from prefect.context import FlowRunContext
from prefect.settings import get_current_settings

from hpo_flows.prefect_api.connection import PrefectServerError, answer_of

ASK_SECONDS = 2.0
ANSWER_SECONDS = 5.0
"""An API that takes longer to say that it is well is away."""
HURRIED_SECONDS = 1.0
"""Longest request once nobody waits for the API any more."""
END_SECONDS = 3.0
"""Seconds until such a process ends."""
_unreachable = False
_usual: int | None = None


def api_is_unreachable() -> bool:
    """True if the API did not answer the last time it was asked: requests would wait for it."""
    return _unreachable


def api_answers(seconds: float = ANSWER_SECONDS) -> bool:
    """Ask the API whether it answers; if not, Prefect's client tries each request only once until it does."""
    global _unreachable, _usual
    settings = get_current_settings()
    if settings.api.url is None:
        return True
    for again in (True, False):
        try:
            answer_of(settings.api.url, seconds=seconds)
        except PrefectServerError:
            if again:
                time.sleep(0.5)
        else:
            if _usual is not None:
                settings.client.max_retries, _usual = _usual, None
            _unreachable = False
            return True
    if _usual is None:
        _usual = settings.client.max_retries
    settings.client.max_retries = 0
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
