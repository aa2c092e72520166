"""Imports that would take signals for themselves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_one_at_a_time = threading.Lock()


@contextmanager
def signal_handlers_kept() -> Iterator[None]:
    """Let this thread set no signal handlers; other threads still may.

    A module that calls ``signal.signal`` when it is imported fails in any thread but the main one, and takes the
    handlers of Prefect, asyncio or ours away in the main one. A cluster starts in a thread of its own, and a flow run
    may be in any.
    """
    here = threading.get_ident()
    with _one_at_a_time:
        real = signal.signal

        def kept(number: int, handler: Any) -> Any:
            return signal.getsignal(number) if threading.get_ident() == here else real(number, handler)

        signal.signal = kept  # type: ignore[assignment]
        try:
            yield
        finally:
            signal.signal = real
