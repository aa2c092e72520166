"""The process of a home's Prefect server: ``python -m hpo_flows.prefect_api.server_process SOCKET LOCK USERS``.

It answers its own pages and programs only: Prefect's password, CSRF tokens and CORS origins are set in its
environment; here whatever comes under another name of this machine (a DNS name that an attacker points at 127.0.0.1)
or from another site's page is refused, WebSockets included, which CORS does not cover.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOOK_SECONDS = 0.5
_SHUTDOWN_SECONDS = 3
_END_SECONDS = 5.0


class OwnPagesOnly:
    """ASGI middleware: refuses other Host headers than ours, and other Origins.

    Args:
        server: what it is, for the refusal.
    """

    def __init__(self, app: App, port: int, server: str) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}
        self._cure = (
            f"This {server} answers as 127.0.0.1:{port} and localhost:{port} only, and to its own pages only; "
            "through a tunnel use the same port number.\n"
        ).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._allows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(self._cure)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": self._cure})

    def _allows(self, scope: Scope) -> bool:
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        origins = {value.lower() for name, value in scope["headers"] if name == b"origin"}
        return len(hosts) == 1 and hosts[0] in self._hosts and origins <= self._origins


def _stage(words: str) -> None:
    """For whoever waits: a start that takes minutes on a busy machine has said how far it is."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}", flush=True)


def _end_when_unused(users: str) -> None:
    """End this process once no controller holds on to it; the lock is kept to the end, so no new one begins to."""
    lock = os.open(users, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_SECONDS)
        else:
            break
    timer = threading.Timer(_END_SECONDS, os._exit, args=(0,))
    timer.daemon = True
    timer.start()
    _stage("no study uses this server any more: it ends")
    os.kill(os.getpid(), signal.SIGTERM)


def main(listening: int, lock: int, users: str) -> None:
    """Serve until no controller holds on to the server.

    Args:
        listening: the socket, bound already.
        lock: the lock that says that this process lives; inherited, and passed on to nobody.
        users: the lock that controllers hold.
    """
    for given in (listening, lock):
        os.set_inheritable(given, False)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    threading.Thread(target=_end_when_unused, args=(users,), daemon=True).start()
    _stage("importing Prefect")
    import uvicorn
    from prefect.server.api.server import create_app

    _stage("preparing API and pages")
    app = create_app()
    with socket.socket(fileno=listening) as bound:
        guarded = OwnPagesOnly(app, bound.getsockname()[1], "Prefect server")
        _stage("opening the database")
        uvicorn.Server(
            uvicorn.Config(
                guarded, log_level="warning", timeout_keep_alive=30, timeout_graceful_shutdown=_SHUTDOWN_SECONDS
            )
        ).run(sockets=[bound])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
