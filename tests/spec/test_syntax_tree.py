"""Python code is parsed in one thread at a time."""

from __future__ import annotations

import ast
import contextlib
import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.syntax_tree import syntax_tree


class Cycle:
    """Ends in the garbage collector, where Python may change to another thread."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(100):
            pass


@pytest.fixture
def collecting() -> Iterator[None]:
    """A collection every few objects, and another thread every few instructions."""

    def make_garbage(phase: str, _: Any) -> None:
        for _ in range(20 if phase == "start" else 0):
            Cycle()

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    gc.callbacks.append(make_garbage)
    yield
    gc.callbacks.remove(make_garbage)
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("collecting")
def test_a_library_parses_in_another_thread_meanwhile() -> None:
    """A flow run ended as Failed with a SystemError: Prefect's own threads parse, too."""
    text = Path(__file__).read_text()
    expected = ast.dump(ast.parse(text))
    ended = threading.Event()

    def library() -> None:
        while not ended.is_set():
            with contextlib.suppress(SystemError, RecursionError):
                ast.parse(text)

    other = threading.Thread(target=library)
    other.start()
    try:
        found = [ast.dump(syntax_tree(text)) for _ in range(20)]
    finally:
        ended.set()
        other.join()
    assert found == [expected] * len(found)
