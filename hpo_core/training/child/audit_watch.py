"""AuditWatch: notices what training code does that cannot be seen afterwards, by the events that Python audits."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from hpo_core.training.child.module_state import OURS, is_of_library_file

_NATIVE = (
    "CUDA", "CUBLAS", "CUDNN", "NVIDIA", "NCCL", "OMP", "KMP", "GOMP", "MKL", "OPENBLAS", "BLIS", "TORCH", "PYTORCH",
    "XLA", "TF_", "JAX", "MALLOC_", "LD_",
)  # fmt: skip
"""Beginnings of the environment variables that compiled libraries read once, when they are first used."""


class AuditWatch:
    """Watches what an attempt does; made once in a process, since Python keeps an audit hook for ever.

    An environment variable that compiled libraries read once may have been read by the attempt before: then the
    attempt begins anew in another process. What else is noticed ends the process after the attempt.
    """

    def __init__(self) -> None:
        self.variable = ""
        """An environment variable that was set and that compiled libraries read."""
        self.change = ""
        """What else was changed, for people."""
        self._watching = False
        self._on_variable: Callable[[], object] | None = None
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def watched(self, on_variable: Callable[[], object] | None) -> Iterator[None]:
        """Watch while the attempt runs.

        Args:
            on_variable: called at once where such a variable is set; None: its name is noted.
        """
        self._watching, self._on_variable = True, on_variable
        try:
            yield
        finally:
            self._watching = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching:
            return
        if event == "os.putenv":
            name, value = (os.fsdecode(each) for each in arguments)
            if name.startswith(_NATIVE) and os.environ.get(name) != value and not _is_set_by_us():
                self.variable = name
                if self._on_variable is not None:
                    self._on_variable()
        elif event == "sys.addaudithook":
            self.change = "an audit hook was added"
        elif event == "object.__setattr__" and _is_of_library(arguments[0]):
            function, name, *_ = arguments
            self.change = f"{function.__module__}.{function.__qualname__}.{name} was replaced"


def _is_of_library(function: Any) -> bool:
    """Whether a function is one that a library offers: by its module and name, it is found."""
    if not isinstance(function, types.FunctionType) or not is_of_library_file(function.__code__.co_filename):
        return False
    try:
        found = functools.reduce(getattr, function.__qualname__.split("."), sys.modules[function.__module__])
    except (AttributeError, KeyError):
        return False
    return found is function


def _is_set_by_us() -> bool:
    """Whether our own code sets the variable now: for all attempts of a process alike."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] == OURS
