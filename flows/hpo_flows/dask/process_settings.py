"""Settings of this process that studies change while they run: Dask's configuration, levels of loggers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import dask
import distributed  # noqa: F401 - brings the defaults of its configuration


class ProcessSettings:
    """Overrides of several studies, which begin and end in any order.

    The latest override of a value holds. What was there before the first one is put back after the last.

    Args:
        read: returns a value by its name.
        write: sets one.
    """

    def __init__(self, read: Callable[[str], Any], write: Callable[[str, Any], object]) -> None:
        self._read, self._write = read, write
        self._lock = threading.Lock()
        self._overrides: list[dict[str, Any]] = []
        self._before: dict[str, Any] = {}

    def begin(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Override these values; returns the function that ends it."""
        override = dict(values)
        with self._lock:
            self._before |= {name: self._read(name) for name in override if name not in self._before}
            self._overrides.append(override)
            for name, value in override.items():
                self._write(name, value)
        return lambda: self._end(override)

    def _end(self, override: dict[str, Any]) -> None:
        with self._lock:
            self._overrides = [other for other in self._overrides if other is not override]
            held = {name: value for other in self._overrides for name, value in other.items()}
            for name in override:
                self._write(name, held[name] if name in held else self._before.pop(name))


dask_settings = ProcessSettings(
    lambda name: dask.config.get(name, None), lambda name, value: dask.config.set({name: value})
)
log_levels = ProcessSettings(
    lambda name: logging.getLogger(name).level, lambda name, level: logging.getLogger(name).setLevel(level)
)
