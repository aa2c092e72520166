"""An attacker's server, which keeps the paths that it is asked for; and the addresses at which a process listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil


def sockets_of(process: psutil.Process, kind: str = "inet") -> list[Any]:
    connections = getattr(process, "net_connections", None) or process.connections  # before psutil 6
    return [one.laddr for one in connections(kind) if one.status == psutil.CONN_LISTEN]


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            heard.append(self.path)
            self.send_error(404)

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
