"""A front before a real Prefect server, which lets everything through, or behaves as a server that is away."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Literal

How = Literal["there", "gone", "hanging", "503"]
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class PrefectFront:
    """Passes connections on to a server, as its own port: the server answers to its own name only.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self._server = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._port = self._listening.getsockname()[1]
        self._how: How = "there"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def become(self, how: How) -> None:
        """Behave so from now on, for connections that are open, too."""
        self._how = how
        if how != "hanging":
            self._drop()

    def close(self) -> None:
        """Accept and pass on no more."""
        self._how = "gone"
        self._listening.close()
        self._drop()

    def _drop(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        with client:
            if self._how == "503":
                with contextlib.suppress(OSError):
                    client.recv(65536)
                    client.sendall(_BUSY)
                    client.recv(65536)
            elif self._how != "gone":
                with contextlib.suppress(OSError), socket.create_connection(self._server) as server:
                    self._pass_on(client, server)
        self._open.discard(client)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        named, meant = (f"127.0.0.1:{port}".encode() for port in (self._port, self._server[1]))
        with selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in ready.select(0.2):
                    if self._how == "hanging":
                        threading.Event().wait(0.2)
                        continue
                    source = client if key.data is server else server
                    data = source.recv(65536)
                    if not data:
                        return
                    key.data.sendall(data.replace(named, meant) if source is client else data)
