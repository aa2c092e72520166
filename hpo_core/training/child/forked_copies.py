"""Ends copies of a process that user code made with ``os.fork()``, so that its results are written once."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec


def exit_if_forked_copy(original_pid: int, error: BaseException | None = None) -> None:
    """End this process, as a script would, if it is not process ``original_pid``.

    A copy that returned from user code would write the checkpoint, the report and exit-function output a second time.

    Args:
        error: the exception that user code ended with; decides the exit code, as in a script.
    """
    if os.getpid() == original_pid:
        return
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)


def write_answer(file: Path, answer: Any, original_pid: int) -> None:
    """Write what this process was asked for, whole or not at all; a copy that user code forked ends here instead."""
    exit_if_forked_copy(original_pid)
    side = file.with_suffix(".part")
    side.write_bytes(msgspec.msgpack.encode(answer))
    side.replace(file)
