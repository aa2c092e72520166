"""User code: its exceptions as text, the end of copies that it forked, a process of its own for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.model.errors import HpoError, ObjectiveError
from hpo_core.security.masking import without_private_settings
from hpo_core.training.child.processes import TAG_VARIABLE, kill_tagged

MAX_MESSAGE_LENGTH = 500
"""Characters of an exception's text in a report's one-line message; the traceback has the rest."""
MAX_TRACEBACK_LENGTH = 4096
"""Characters of a traceback in a report's detail, counted from its end."""
_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = tuple(
    f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def traceback_tail(error: BaseException) -> str:
    text = _printable("".join(traceback.format_exception(error)))
    return text if len(text) <= MAX_TRACEBACK_LENGTH else "..." + text[-MAX_TRACEBACK_LENGTH:]


def own_frames(error: BaseException) -> str:
    """The place in the user's code that an exception came from: its frames without those of libraries.

    Where no frame is the user's (the module is an installed package), those of libraries stand, but for Python's import
    and this package. At most ``MAX_TRACEBACK_LENGTH`` characters.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_library_file(frame.filename)]
    own = own or [frame for frame in frames if not leads_to_user_code(frame.filename)]
    lines = traceback.StackSummary.from_list(own).format()
    deeper = next((place for place, frame in enumerate(reversed(frames)) if own and frame is own[-1]), 0)
    if deeper and not isinstance(error, HpoError):
        file, line = Path(frames[-1].filename), frames[-1].lineno
        lines.append(f"  (raised {deeper} calls deeper, in {file.parent.name}/{file.name}, line {line})\n")
    if isinstance(error, SyntaxError):  # the file that cannot be read has no frame
        lines += traceback.format_exception_only(error)[:-1]
    if error.__cause__ is not None and not isinstance(error, HpoError):  # ours say the cause themselves
        lines.append(f"  caused by {one_line_message(error.__cause__)}\n")
    text = _printable("".join(lines))
    return text if len(text) <= MAX_TRACEBACK_LENGTH else "..." + text[-MAX_TRACEBACK_LENGTH:]


def causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and all(one is not other for other in seen):
            seen.append(one)
            yield one
            waiting += [one.__cause__, one.__context__]


def is_library_file(file: str) -> bool:
    """True if a file is of Python, an installed package or this one: no code of the user."""
    if leads_to_user_code(file) or file.startswith("<frozen"):
        return True
    path = Path(file)
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or str(path.resolve()).startswith(_LIBRARIES)


def leads_to_user_code(file: str) -> bool:
    """True if a frame of this file only leads to other code: this package, and Python's import."""
    path = Path(file)
    return path.is_relative_to(_PACKAGE) or path.parent.name == "importlib" or file.startswith("<frozen importlib")


def explained(error: BaseException) -> str:
    """Text of an exception for people: message and place in their code for ours, the whole traceback for others."""
    if isinstance(error, HpoError):
        return f"{error}\n{own_frames(error)}".rstrip("\n")
    return f"{type(error).__name__}: {error}\n{traceback_tail(error)}"


def one_line_message(error: BaseException) -> str:
    try:
        text = _printable(" ".join(str(error).split()))
    except Exception:
        text = "(its text cannot be shown)"
    if len(text) > MAX_MESSAGE_LENGTH:
        text = text[:MAX_MESSAGE_LENGTH] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


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
        code = exit_code(error)
    elif error is not None:
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
    flush_streams()
    os._exit(code & 0xFF)


def exit_code(error: SystemExit) -> int:
    """The exit code that a script would end with: 0 for ``sys.exit()``, 1 for ``sys.exit("text")``."""
    return int(error.code) if isinstance(error.code, int) else int(error.code is not None)


def flush_streams() -> None:
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
