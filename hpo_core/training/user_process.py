"""Runs user code in a process of its own, and ends copies that it made with ``os.fork()``: results are written once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import traceback
import uuid
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.security.masking import without_private_settings
from hpo_core.training.child.attempt_log import log_tail
from hpo_core.training.child.processes import TAG_VARIABLE, kill_tagged


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
    flush_streams()
    os._exit(code & 0xFF)


def flush_streams() -> None:
    """Flush standard output and standard error, whatever user code made of them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


def write_answer(file: Path, answer: Any, original_pid: int) -> None:
    """Write what this process was asked for, whole or not at all; a copy that user code forked ends here instead."""
    exit_if_forked_copy(original_pid)
    side = file.with_suffix(".part")
    side.write_bytes(msgspec.msgpack.encode(answer))
    side.replace(file)


def run_in_process(module: str, request: bytes, folder: Path, timeout: float | None) -> tuple[int | None, bytes, str]:
    """Run a module that runs user code: it reads a request and writes its answer to the file it is given.

    Its output goes to a file: a subprocess (of a data loader, say) could keep a pipe open for as long as it lives.
    What it started ends with it.

    Returns:
        Its exit code (None where it took too long), its answer (empty where it gave none), the end of its output.
    """
    asked, out, tag = folder / "request", folder / "answer", uuid.uuid4().hex
    asked.write_bytes(request)
    with asked.open("rb") as stdin, (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(out)],
            stdin=stdin,
            stdout=log,
            stderr=log,
            env=without_private_settings(os.environ) | {TAG_VARIABLE: tag},
            start_new_session=True,
        )
    try:
        code: int | None = process.wait(timeout)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kill_tagged(tag)
    return code, out.read_bytes() if out.exists() else b"", log_tail(folder / "log")
