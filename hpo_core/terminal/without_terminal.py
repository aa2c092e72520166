"""Commands that run for long go on without their terminal: what cannot be written is lost, and a hangup is an end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, cast

ENDS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command in order, as Ctrl-C does."""


class LossyStream:
    """A text stream that loses what cannot be written: a closed pipe or terminal, a full disk.

    Args:
        stream: where to write to; each text is tried anew.
        on_loss: called with the first error.
    """

    def __init__(self, stream: Any, on_loss: Callable[[Exception], None] = lambda _: None) -> None:
        self._stream = stream
        self._on_loss = on_loss
        self._lost = False

    def write(self, text: str) -> int:
        """Write, or lose it; a character that the stream's encoding lacks becomes a question mark."""
        with self._losing():
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                known = self._stream.encoding
                self._stream.write(text.encode(known, "replace").decode(known))
        return len(text)

    def flush(self) -> None:
        """Flush, or lose what is left."""
        with self._losing():
            self._stream.flush()

    @contextlib.contextmanager
    def _losing(self) -> Any:
        try:
            yield
        except (OSError, ValueError) as error:  # a ValueError: it is closed
            if not self._lost:
                self._lost = True
                self._on_loss(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_terminal(goes_on: str) -> None:
    """Lose from now on what this process cannot write to its standard streams.

    Args:
        goes_on: said on standard error where standard output is lost, such as "the study goes on".
    """
    errors = LossyStream(sys.stderr)

    def tell(error: Exception) -> None:
        errors.write(
            f"This command's output can no longer be written ({getattr(error, 'strerror', error)}); {goes_on}.\n"
        )
        errors.flush()

    sys.stdout, sys.stderr = cast(Any, LossyStream(sys.stdout, tell)), cast(Any, errors)


def interrupt_at_end() -> None:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, except where they are ignored (``nohup``)."""
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def has_columns() -> bool:
    """True if ``COLUMNS`` names a width; 0 is none, as some shells say without a terminal."""
    return bool(os.environ.get("COLUMNS", "").strip("0"))
