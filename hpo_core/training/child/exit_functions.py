"""ExitFunctions: what the training code registers with ``atexit`` runs at the end of each attempt."""

from __future__ import annotations

import atexit
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from hpo_core.training.child.module_state import is_of_library_file, is_users_object


class ExitFunctions:
    """Functions that the training code registers with ``atexit``: they run at the end of each attempt.

    Those that libraries register for themselves run when the process ends: a library that closed itself down would be
    of no use to the next attempt. Made in the zygote; replaces ``atexit.register``.
    """

    def __init__(self) -> None:
        self._own: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._register, self._unregister = atexit.register, atexit.unregister
        self._others = atexit._ncallbacks()
        vars(atexit)["register"], vars(atexit)["unregister"] = self.register, self.unregister

    def register(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Callable[..., Any]:
        """As ``atexit.register``."""
        if is_of_library_file(sys._getframe(1).f_code.co_filename):
            self._register(function, *arguments, **keywords)
            self._others = atexit._ncallbacks()
        else:
            self._own.append((function, arguments, keywords))
        return function

    def unregister(self, function: Callable[..., Any], /) -> None:
        """As ``atexit.unregister``."""
        self._own = [each for each in self._own if each[0] != function]
        known = atexit._ncallbacks() == self._others
        self._unregister(function)
        if known:
            self._others = atexit._ncallbacks()

    @property
    def unseen(self) -> bool:
        """Whether one was registered by a function that was imported before it was replaced."""
        return atexit._ncallbacks() != self._others

    def run(self) -> None:
        """Run them, the last one first, as at the end of a process."""
        while self._own:
            function, arguments, keywords = self._own.pop()
            try:
                function(*arguments, **keywords)
            except SystemExit:
                pass
            except BaseException:
                traceback.print_exc()
        for one, about in list(weakref.finalize._registry.items()):  # type: ignore[attr-defined]
            if about.atexit and (is_users_object(about.func) or is_users_object(about.weakref())):
                one()
