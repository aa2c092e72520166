"""Progress of a study, of a command or a call: a board in the cell of a notebook or in a terminal, else lines."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
import threading
import time
import warnings
from types import TracebackType
from typing import Any

from rich.console import Console

from hpo_core.execution.loop import Observer
from hpo_core.model.features import FEATURES, feature
from hpo_core.model.trial import Job, Report
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.study import Study
from hpo_core.terminal.output import SafeConsole
from hpo_core.terminal.without_terminal import LossyStream
from hpo_flows.progress import BoardNotes, LiveBoard, PlainLines, drawn_board, redraw_seconds

log = logging.getLogger("hpo.python")
SLOWEST_SECONDS = 5.0
"""Seconds between two drawings in a notebook at most: its server keeps all of them while no browser is connected."""
MOST_WARNINGS = 10
"""Warnings of training functions that a notebook shows, the latest ones."""
_WIDTH = 100
_HTML = '<pre style="white-space:pre;line-height:1.3">{code}</pre>'
_terminal = threading.Lock()
"""Held by the one study that has a board in the terminal; others write lines above it."""


class ShownProgress:
    """Shows one study from the call to its result or error; call it with the study once that is open.

    Args:
        name: of the study.
        on: False shows nothing.
        console: of a command, which shows its result there at the end; None: standard error, or the notebook.
    """

    def __init__(self, name: str, *, on: bool = True, console: Console | None = None) -> None:
        self._name = name
        self._on = on
        self._console = console
        self._cell: Cell | None = None
        self._waits = False
        self._board: NotebookBoard | LiveBoard | None = None

    def __enter__(self) -> ShownProgress:
        if self._on and notebook_shell() is not None:  # before the start, in the cell that asks for it
            self._cell = Cell()
            self._cell.show_words(self._name, "starts")
        return self

    def __call__(self, study: Study) -> Observer:
        if self._cell is not None:
            self._board = NotebookBoard(study, self._cell)
            return self._board
        console = self._console or SafeConsole(file=LossyStream(sys.stderr))
        if console.is_terminal and _terminal.acquire(blocking=False):
            self._board = LiveBoard(study, console, stays=self._console is None)
            return self._board
        if self._console is not None:
            return PlainLines(study, lambda line: print(terminal_text(line), flush=True))
        return PlainLines(study, write_line, each=0)

    def wait_for(self, words: str) -> None:
        """Show what the end of the study waits for."""
        if self._board is not None:
            self._board.wait_for(words)
        elif not self._waits:
            self._waits = True
            line = f"{words} ..."
            write_line(line) if self._console is None else print(line, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            try:
                self._board.end(error)
            finally:
                if isinstance(self._board, LiveBoard):
                    self._board.stop()
                    _terminal.release()
        elif self._cell is not None and error is not None:
            self._cell.show_words(self._name, f"did not start: {type(error).__name__}")


def write_line(words: str) -> None:
    """Write a line for the person at the terminal or notebook, or for whoever reads the log.

    A notebook shows standard error in a red box, as if something was wrong.
    """
    stream = sys.stderr if notebook_shell() is None else sys.stdout
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed, and a study does not end for that
        print(terminal_text(words), file=stream, flush=True)


def notebook_shell() -> Any:
    """IPython's shell where this process is the kernel of a notebook, else None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if getattr(shell, "kernel", None) is not None else None


if notebook_shell() is not None:  # else Optuna's import leaves tqdm's warning in the notebook: no ipywidgets
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")
        importlib.import_module("tqdm.auto")


class Cell:
    """An output of a notebook's cell that is drawn in place, from whatever thread; what fails there hurts nobody."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._failed = False

    def show_words(self, name: str, words: str) -> None:
        """A line in place of all."""
        drawn = {"text/html": feature("report", "pictures").headline(name, words)} if "report" in FEATURES else {}
        self.show({"text/plain": f"{name} {words}"} | drawn)

    def show(self, pictures: dict[str, str]) -> None:
        """Draw, by media type; nothing after the first time that it failed."""
        if self._failed:
            return
        try:
            if self._handle is None:
                from IPython.display import DisplayHandle

                self._handle = DisplayHandle()
                self._handle.display(pictures, raw=True)
            else:
                self._handle.update(pictures, raw=True)
        except Exception:  # the connection to the browser is no part of the study
            self._failed = True
            log.exception("the notebook does not show the study any more")


class NotebookBoard:
    """The board of a terminal in the cell of a notebook."""

    def __init__(self, study: Study, cell: Cell) -> None:
        self._study = study
        self._cell = cell
        self._notes = BoardNotes(study)
        self._warnings: list[str] = []
        self._next = 0.0
        self._draw()

    def on_report(self, report: Report, granted: list[Job]) -> None:
        self._warnings += self._notes.take(report, granted)
        del self._warnings[:-MOST_WARNINGS]
        self.on_tick()

    def on_tick(self) -> None:
        if time.monotonic() >= self._next:
            self._draw()

    def close(self) -> None:
        self.wait_for("ending")

    def wait_for(self, words: str) -> None:
        self._notes.wait_for(words)
        self._draw()

    def end(self, error: BaseException | None) -> None:
        """Show the last state, and how the study ended; it is what a saved notebook holds."""
        self._notes.end(error)
        self._draw()

    def _draw(self) -> None:
        self._next = time.monotonic() + min(redraw_seconds(self._notes.pace.elapsed()), SLOWEST_SECONDS)
        console = Console(file=io.StringIO(), record=True, width=_WIDTH, force_jupyter=False, force_terminal=False)
        console.print(drawn_board(self._study, self._notes, _WIDTH))
        for words in self._warnings:
            console.print(words, style="yellow", markup=False, soft_wrap=True)
        html = console.export_html(code_format=_HTML, inline_styles=True, clear=False)
        text = "\n".join(line.rstrip() for line in console.export_text().splitlines())
        self._cell.show({"text/plain": text, "text/html": html})
