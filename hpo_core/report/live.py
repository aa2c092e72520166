"""Pages for the browser of this user: the report of a study that follows its journal, and the server of pages.

The server answers on 127.0.0.1, below an address that nobody can guess. Other users of the machine reach the port,
too: the address holds a secret word. A page of another site that gives its own name the address 127.0.0.1 (DNS
rebinding) sends that name as ``Host``, and is refused. Only reading is served.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError
from hpo_core.report.html_page import Live
from hpo_core.report.series import Series, read_series
from hpo_core.report.study_page import render

IDLE_SECONDS = 30
"""A connection that sends nothing for so long is closed."""
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class PageResponse:
    """What a path shows."""

    body: str
    kind: str = "text/html"


class LocalServer(ThreadingHTTPServer):
    """A server of pages on a free port of 127.0.0.1.

    Args:
        answer: the page at a path, relative to the server's own address (``""``: the first page); None where there is
            none. Called from several threads.
    """

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, answer: Callable[[str], PageResponse | None], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer
        self.word = secrets.token_urlsafe(16)
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}

    @property
    def url(self) -> str:
        """Address of the first page."""
        return f"http://127.0.0.1:{self.server_port}/{self.word}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection is no error; any other one is shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer
    timeout = IDLE_SECONDS
    server_version, sys_version = "hpo", ""

    def do_GET(self) -> None:
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            self._refuse(403, "This server answers as 127.0.0.1 and localhost only.")
            return
        first, _, place = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not compare_digest(first.encode(), self.server.word.encode()):
            self._refuse(404, "Not found. Use the whole address that was printed.")
            return
        try:
            found = self.server.answer(place)
        except HpoError as error:
            self._refuse(503, str(error))
            return
        if found is None:
            self._refuse(404, "Not found.")
        else:
            self._send(200, found)

    do_HEAD = do_GET

    def _refuse(self, status: int, words: str) -> None:
        self._send(status, PageResponse(f"{words}\n", "text/plain"))

    def _send(self, status: int, answer: PageResponse) -> None:
        body = answer.body.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to whoever started this."""


ASK_SECONDS = 2.0
"""Between two questions of a page whether there is a newer one."""
_REST = 4.0
"""A page that takes a second to write is written again after four of these at the earliest."""


class LiveReport:
    """Answers for :class:`~hpo_core.report.live.LocalServer`.

    Args:
        journal: read again whenever it has grown.
        folder: of the study, for the ends of its logs.
        links: what the head shows; asked for each time.
    """

    def __init__(
        self, journal: Journal, name: str, folder: Path, links: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._journal, self._name, self._folder, self._links = journal, name, folder, links
        self._lock = threading.Lock()
        self._series: Series | None = None
        self._entries = -1
        self._next = 0.0

    def answer(self, place: str) -> PageResponse | None:
        """The page itself, its changing part, or which version there is."""
        if place not in ("", "fragment", "version"):
            return None
        with self._lock:
            series = self._current()
            ended = series.study.status != "open"
            if place == "version":
                return PageResponse(json.dumps({"version": str(self._entries), "ended": ended}), "application/json")
            live = Live(str(self._entries), ASK_SECONDS)
            began = time.monotonic()
            page = render(series, self._links(), folder=self._folder, live=live, whole=place == "")
            self._next = max(self._next, time.monotonic() + _REST * (time.monotonic() - began))
            return PageResponse(page)

    def _current(self) -> Series:
        now = time.monotonic()
        if self._series is None or now >= self._next:
            known = self._journal.info(self._name).entries
            if self._series is None or known != self._entries:
                self._series = read_series(self._journal.entries(self._name, 0, known))
                self._entries = known
                self._next = time.monotonic() + _REST * (time.monotonic() - now)
        return self._series
