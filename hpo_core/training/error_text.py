"""Exceptions of user code as text: tracebacks and one-line messages of bounded length."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import hpo_core
from hpo_core.model.errors import HpoError

MAX_MESSAGE_LENGTH = 500
"""Characters of an exception's text in a report's one-line message; the traceback has the rest."""
MAX_TRACEBACK_LENGTH = 4096
"""Characters of a traceback in a report's detail, counted from its end."""
_PACKAGE = Path(hpo_core.__file__).parent
_LIBRARIES = tuple(
    f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def traceback_tail(error: BaseException) -> str:
    """The end of the traceback, at most ``MAX_TRACEBACK_LENGTH`` characters."""
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


def is_library_file(file: str) -> bool:
    """Whether a file is of Python, an installed package or this one: no code of the user."""
    if leads_to_user_code(file) or file.startswith("<frozen"):
        return True
    path = Path(file)
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or str(path.resolve()).startswith(_LIBRARIES)


def leads_to_user_code(file: str) -> bool:
    """Whether a frame of this file only leads to other code: this package, and Python's import."""
    path = Path(file)
    return path.is_relative_to(_PACKAGE) or path.parent.name == "importlib" or file.startswith("<frozen importlib")


def explained(error: BaseException) -> str:
    """Text of an exception for people: message and place in their code for ours, the whole traceback for others."""
    if isinstance(error, HpoError):
        return f"{error}\n{own_frames(error)}".rstrip("\n")
    return f"{type(error).__name__}: {error}\n{traceback_tail(error)}"


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
