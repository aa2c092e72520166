"""The ends of attempts' logs, read without following links."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from hpo_core.checkpoints.storage import log_path
from hpo_core.security.masking import masked
from hpo_core.security.untrusted_text import terminal_text

TAIL = 3_000
"""Bytes of one log."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def log_tail(folder: Path, trial: int, attempts: int, ranks: Mapping[int, int] | None = None) -> tuple[str, str] | None:
    """Name and end of the log of the latest attempt that has one; None where none has.

    Args:
        folder: of the study.
        ranks: by attempt, the rank of its gang that failed.
    """
    for attempt in range(attempts - 1, max(-1, attempts - 4), -1):
        place = log_path(trial, attempt, (ranks or {}).get(attempt, 0))
        text = _end_of(folder / place)
        if text.strip():
            return place, text
    return None


def _end_of(path: Path) -> str:
    """Empty unless it is a regular file; what a training printed for a terminal is made plain text."""
    try:
        # A link would show another file of this user in a page that is passed on; a pipe would make us wait.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return ""
        file.seek(max(0, found.st_size - TAIL))
        raw = file.read(TAIL).decode("utf-8", "replace")
    if found.st_size > TAIL:
        raw = "… " + raw.partition("\n")[2]
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in _ESCAPES.sub("", raw).split("\n"))
    return masked(terminal_text("\n".join(lines), lines=True))
