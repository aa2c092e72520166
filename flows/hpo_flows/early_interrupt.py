"""Ctrl-C while a command still starts, and while a study ends.

While a command starts: one sentence and exit code 130. An import that is interrupted ends with a traceback through
other people's code, or with an error that hides the interrupt. Nothing is under way then that would have to be ended in
order.

While a study ends, further ones are ignored: workers are ended in order, and that takes seconds.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def one_interrupt(*others: signal.Signals) -> Iterator[None]:
    """Let the first Ctrl-C raise KeyboardInterrupt, and ignore further ones until the context ends.

    Outside the main thread, and where Ctrl-C is handled by nobody in Python, nothing is changed.

    Args:
        others: signals that count like Ctrl-C.
    """
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, *others)}
    handled = [number for number, handler in before.items() if callable(handler)]
    if threading.current_thread() is not threading.main_thread():
        handled = []
    has_raised = False

    def once(number: int, frame: Any) -> None:
        nonlocal has_raised
        if has_raised:
            with suppress(OSError):  # its terminal may be gone
                os.write(2, b"\nThe study ends; its workers are being stopped.\n")
            return
        try:
            before[number](number, frame)
        except BaseException:
            has_raised = True
            raise

    for number in handled:
        signal.signal(number, once)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
