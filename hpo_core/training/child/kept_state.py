"""KeptState: what an attempt in a kept process must find as in a fresh one.

It reads the settings (:mod:`restored_settings`, :mod:`library_settings`) before the first attempt. After each attempt
it writes what differs, and says what it could not put back: then the process ends, and the next attempt is forked from
the zygote as ever.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import faulthandler
import gc
import os
import socket
import stat
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpo_core.training.child.audit_watch import AuditWatch
from hpo_core.training.child.exit_functions import ExitFunctions
from hpo_core.training.child.library_names import LibraryNames
from hpo_core.training.child.library_settings import OF_LIBRARIES, uses_cuda
from hpo_core.training.child.module_state import UserVariables, is_users, take_package_as_users
from hpo_core.training.child.processes import children, resident
from hpo_core.training.child.restored_settings import OF_PROCESS, Setting, new_packages
from hpo_core.training.objective import cuda_is_initialized

SETTINGS = (*OF_PROCESS, *OF_LIBRARIES)
"""What is put back after each attempt; one without a way to write it is compared."""
_libc: Any = ctypes.CDLL(None)
GROWN_BYTES = 256 << 20
"""Growth of a process's own memory beyond which it is replaced; counted from its first attempt where it has a GPU."""


MORE_DESCRIPTORS = 100
"""Number of further open files beyond which a process is replaced; counted as its memory is."""


def _descriptors() -> dict[int, tuple[int, int, int]]:
    """Device, number and type of each open file, by descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (half the time)
        with contextlib.suppress(OSError):  # the one for this listing
            about = os.fstat(int(name))
            found[int(name)] = about.st_dev, about.st_ino, about.st_mode
    return found


def _imported_since() -> str:
    """A library that was imported after the training function's module; empty: none."""
    new = new_packages() - sys.stdlib_module_names
    return min((name for name in new if not name.startswith("_")), default="")  # the others are parts of libraries


_OF_IMPORTS = ("filters of warnings", "sys.meta_path", "sys.path_hooks")
"""Settings that a library may change when it is imported: then they cannot be put back."""
_WITH_SETTINGS = {one.module for one in SETTINGS if not one.module.startswith("torch.")} - sys.stdlib_module_names
"""Modules whose settings must be read before an attempt can change them."""


class KeptState:
    """What a process is like before its first attempt; made in the zygote, and completed in the child.

    Args:
        function: the training function, which may be of no module (it was sent by value).
        more: further values that no attempt may change, by name: partitions of the data that are loaded.
    """

    def __init__(self, function: Callable[..., Any], more: Callable[[], dict[str, Any]] = dict) -> None:
        take_package_as_users(function)
        self.exits = ExitFunctions()
        self._libraries = LibraryNames()
        self._more = more
        self._function = function
        self.look_at_variables()
        self._modules = dict(sys.modules)
        new_packages()
        self._abstract = abc.get_cache_token()
        self._before: list[tuple[Setting, Any]] = []
        self._descriptors: dict[int, Any] = {}
        self._resident: int | None = None

    def look_at_variables(self) -> None:
        """Look at variables again: a partition was loaded."""
        self._variables = UserVariables(lambda: [("the training function", self._function), *self._more().items()])

    def begin(self) -> None:
        """Read all settings; call it in the child, before its first attempt."""
        self._before = [(setting, _read(setting)) for setting in SETTINGS if _is_there(setting)]
        self._descriptors = _descriptors()
        self._resident, self._open = resident("self"), len(self._descriptors)
        self.watch = AuditWatch()

    def put_back(self) -> str:
        """Put back what the attempt changed; returns what cannot be, for people; empty: nothing."""
        try:
            return self._left_running() or self._settings() or self._imports() or self._changes() or _cuda_memory()
        except Exception as error:
            return f"nobody can tell what changed: {type(error).__name__}: {error}"

    def grew(self, beside: int = 0) -> bool:
        """Whether the process takes so much more memory than it did that it is replaced.

        What a GPU needs of the computer's memory, in its first attempt, is no growth.

        Args:
            beside: bytes that it holds for the next attempt.
        """
        now = resident("self") - beside
        if self._resident is None or (cuda_is_initialized() and not self._on_gpu):
            self._resident, self._open, self._on_gpu = now, len(_descriptors()), True
        if now - self._resident > GROWN_BYTES // 2:
            _libc.malloc_trim(0)
            now = resident("self") - beside
        return now - self._resident > GROWN_BYTES or len(_descriptors()) > self._open + MORE_DESCRIPTORS

    _on_gpu = False

    def _left_running(self) -> str:
        faulthandler.cancel_dump_traceback_later()
        for thread in threading.enumerate():
            if type(thread).__module__ == "tqdm._monitor":  # one begins with each bar
                thread.exit()  # type: ignore[attr-defined]
        if len(sys._current_frames()) > 1:
            names = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
            return f"{', '.join(names) or 'a thread'} still runs"
        if children(os.getpid()):
            return "a process that it started still runs"
        if self.watch.variable:
            said = f"{self.watch.variable} was set in the environment"
            if imported := _imported_since():
                return f"{said}, perhaps by {imported}: import it at the top of the module"
            return f"{said}: set it where the function's module is imported"
        return "a function was registered with atexit by a name from before" if self.exits.unseen else self.watch.change

    def _settings(self) -> str:
        if sys.modules.get("torch") is not None:
            _finish_torch()
        gc.collect()
        imported = _imported_since()
        for setting, before in self._before:
            if not _same(_read(setting), before):
                if imported and setting.name in _OF_IMPORTS:
                    return f"{setting.name} changed, perhaps by {imported}: import it at the top of the module"
                if setting.write is not None:
                    with contextlib.suppress(Exception):
                        setting.write(before)
                if not _same(_read(setting), before):
                    return f"{setting.name} changed"
        now = _descriptors()
        changed = [number for number, about in self._descriptors.items() if now.get(number) != about]
        if changed:
            return f"file descriptor {changed[0]} was closed or replaced"
        listens = any(
            _listens(number)
            for number, (*_, mode) in now.items()
            if number not in self._descriptors and stat.S_ISSOCK(mode)
        )
        if listens:
            return "a socket still listens"
        opened = any(stat.S_ISREG(now[number][2]) for number in now.keys() - self._descriptors.keys())
        return "a lock on a file is still held" if opened and _holds_locks() else ""

    def _imports(self) -> str:
        modules = dict(sys.modules)
        registered = self._abstract != abc.get_cache_token()
        if modules == self._modules:
            return "a class was registered with an abstract base class" if registered else ""
        self._abstract = abc.get_cache_token()
        for name, module in self._modules.items():
            if modules.get(name) is not module:
                return f"module {name} was {'replaced' if name in modules else 'removed'}"
        for name in sorted(modules.keys() - self._modules):
            if modules[name] is None:
                return f"module {name} cannot be imported any more: it is None in sys.modules"
            if is_users(modules[name]) or name in _WITH_SETTINGS:
                return f"{name} was imported by the training function: import it at the top of its module"
        self._modules = modules
        return self._libraries.change() or self._libraries.look_at_new()

    def _changes(self) -> str:
        return self._variables.change() or self._libraries.change()


def _listens(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _holds_locks() -> bool:
    """Whether this process holds a lock on a file."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any(str(os.getpid()) in line.split()[4:5] for line in lines)


def _is_there(setting: Setting) -> bool:
    return not setting.module or setting.module in sys.modules


def _read(setting: Setting) -> Any:
    """Reads a setting; of one that cannot be read, the error is returned."""
    try:
        if not setting.module.startswith("torch"):
            return setting.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about settings of old names
            return setting.read()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False


def _finish_torch() -> None:
    """Free what torch holds of the GPU for the next attempt: that may need another part of it."""
    torch: Any = sys.modules["torch"]
    if uses_cuda():
        torch.cuda.synchronize()
        gc.collect()
        if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def _cuda_memory() -> str:
    if not uses_cuda():
        return ""
    torch: Any = sys.modules["torch"]
    held = sum(int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count()))
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
    return f"{held:,} bytes of a GPU are still held" if held else ""
