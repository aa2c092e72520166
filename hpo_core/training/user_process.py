"""Runs user code in a process of its own, and ends copies that it made with ``os.fork()``: results are written once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.model.errors import ObjectiveError
from hpo_core.security.masking import without_private_settings
from hpo_core.training.child.processes import TAG_VARIABLE, kill_tagged
from hpo_core.training.error_text import explained

OUTPUT_BYTES = 4096
"""Bytes from the end of a process's output that its error repeats."""


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


class _Answer(msgspec.Struct, frozen=True):
    result: Any = None
    error: str = ""


def ask_process(module: str, request: msgspec.Struct, result: Any, *, timeout: float | None, what: str) -> Any:
    """Run a module whose :func:`answer_request` runs user code, in a process without our credentials.

    Its output goes to a file: a subprocess (of a data loader, say) could keep a pipe open for as long as it lives.
    What it started ends with it.

    Args:
        result: type of the answer.
        timeout: seconds; None: no limit.
        what: what it does, for the error: ``Evaluation by lab:evaluate``.

    Raises:
        ObjectiveError: the user's code raised, or its process died or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="hpo-process-", ignore_cleanup_errors=True) as name:
        asked, out, output = (Path(name) / part for part in ("request", "answer", "log"))
        asked.write_bytes(msgspec.msgpack.encode(request))
        tag = uuid.uuid4().hex
        with asked.open("rb") as stdin, output.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(out)],
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=without_private_settings(os.environ) | {TAG_VARIABLE: tag},
                start_new_session=True,
            )
        ended = f"took longer than {timeout or 0:g} s. Raise the limit, or use fewer data"
        try:
            ended = f"ended with code {process.wait(timeout)} and no answer. Run the function by hand on one checkpoint"
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kill_tagged(tag)
        if not out.exists():
            with output.open("rb") as log:
                log.seek(max(0, output.stat().st_size - OUTPUT_BYTES))
                printed = log.read().decode("utf-8", "replace")
            raise ObjectiveError(f"{what} {ended}. Its output ended:\n{printed}")
        answer = msgspec.msgpack.decode(out.read_bytes(), type=_Answer)
    if answer.error:
        raise ObjectiveError(f"{what} failed: {answer.error}")
    return msgspec.convert(answer.result, result)


def answer_request(request: Any, answer: Callable[[Any], Any]) -> None:
    """The main function of a module that :func:`ask_process` runs.

    The answer is written whole or not at all; a copy that user code forked ends before it.

    Args:
        request: type of what is read from standard input.
        answer: makes the result, of plain values.
    """
    out, pid = Path(sys.argv[1]), os.getpid()
    try:
        found = _Answer(answer(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=request)))
    except BaseException as error:
        exit_if_forked_copy(pid, error)
        found = _Answer(error=explained(error))
    exit_if_forked_copy(pid)
    side = out.with_suffix(".part")
    side.write_bytes(msgspec.msgpack.encode(found))
    side.replace(out)
