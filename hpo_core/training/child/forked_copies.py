"""Copies of a training process that user code made by ``os.fork()``."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback


def leave_if_copy(original: int, error: BaseException | None = None) -> None:
    """End this process if it is not ``original``, as a script that got to its end (or to ``error``) would.

    A copy that came back from the user's code would write the checkpoint, the report and whatever exit functions
    write once more.
    """
    if os.getpid() == original:
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
