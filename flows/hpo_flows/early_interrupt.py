"""Ctrl-C while a command still starts: one sentence and exit code 130.

An import that is interrupted ends with a traceback through other people's code, or with an error that hides the
interrupt. Nothing is under way then that would have to be ended in order.
"""

from __future__ import annotations

import os
import signal
from typing import Any

_INTERRUPTED = 130


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once, until ``raise_at_interrupt``; not where it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_at_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: Any) -> None:
    os.write(2, b"\nInterrupted while it started: nothing was begun.\n")
    os._exit(_INTERRUPTED)
