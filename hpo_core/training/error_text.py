"""Exceptions of user code as text: tracebacks and one-line messages of bounded length."""

from __future__ import annotations

import traceback

MAX_MESSAGE_LENGTH = 500
"""Characters of an exception's text in a report's one-line message; the traceback has the rest."""
MAX_TRACEBACK_LENGTH = 4096
"""Characters of a traceback in a report's detail, counted from its end."""


def traceback_tail(error: BaseException) -> str:
    """The end of the traceback, at most ``MAX_TRACEBACK_LENGTH`` characters."""
    text = _printable("".join(traceback.format_exception(error)))
    return text if len(text) <= MAX_TRACEBACK_LENGTH else "..." + text[-MAX_TRACEBACK_LENGTH:]


def one_line_message(error: BaseException) -> str:
    """Type and text of an exception in one line, at most ``MAX_MESSAGE_LENGTH`` characters of text."""
    try:
        text = _printable(" ".join(str(error).split()))
    except Exception:
        text = "(its text cannot be shown)"
    if len(text) > MAX_MESSAGE_LENGTH:
        text = text[:MAX_MESSAGE_LENGTH] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _printable(text: str) -> str:
    """Replace lone surrogates (file names in unknown encodings), which no journal or message can carry."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
