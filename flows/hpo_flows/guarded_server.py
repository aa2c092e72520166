"""The guard before a server of ours, Prefect's or MLflow's, and MLflow's process (argument: its socket).

A server answers its own pages and programs only. Prefect's password, CSRF tokens and CORS origins are set in its
environment; MLflow has no password, so each of its requests needs one here (HTTP's basic authentication). Whatever
comes under another name of this machine (a DNS name that an attacker points at 127.0.0.1) or from another site's page
is refused, WebSockets included, which CORS does not cover.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_SHUTDOWN_SECONDS = 3
_END_SECONDS = 5.0


class OwnPagesOnly:
    """ASGI middleware that refuses other Host headers than the server's own, other Origins, and a missing password.

    Args:
        server: what it is, for the refusal.
        auth: the password, ``USER:WORD``; empty: the application asks for one itself, or for none.
    """

    def __init__(self, app: ASGIApp, port: int, server: str, auth: str = "") -> None:
        self._app = app
        self._password = b"Basic " + base64.b64encode(auth.encode()) if auth else b""
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}
        self._cure = (
            f"This {server} answers as 127.0.0.1:{port} and localhost:{port} only, and to its own pages only; "
            "through a tunnel use the same port number.\n"
        ).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value.lower() for name, value in scope.get("headers", []) if name == b"host"]
        origins = {value.lower() for name, value in scope.get("headers", []) if name == b"origin"}
        given = [value for name, value in scope.get("headers", []) if name == b"authorization"]
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif len(hosts) != 1 or hosts[0] not in self._hosts or not origins <= self._origins:
            await _refuse(scope, send, 403, [(b"content-type", b"text/plain")], self._cure)
        elif self._password and not (len(given) == 1 and compare_digest(given[0], self._password)):
            await _refuse(scope, send, 401, [(b"www-authenticate", b'Basic realm="hpo"')], b"")
        else:
            await self._app(scope, receive, send)


async def _refuse(scope: Scope, send: Send, status: int, headers: list[Any], words: bytes) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [*headers, (b"content-length", str(len(words)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words})


def end_process() -> None:
    """End this process in order, within a few seconds."""
    timer = threading.Timer(_END_SECONDS, os._exit, args=(0,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def serve(make: Callable[[int], ASGIApp], bound: int, **settings: Any) -> None:
    """Serve an application, made for its port, on a socket that is bound already."""
    import uvicorn

    with socket.socket(fileno=bound) as listening:
        app = make(listening.getsockname()[1])
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_SECONDS, **settings)
        uvicorn.Server(config).run(sockets=[listening])


def _end_with_starter() -> None:
    """End this process once the standard input ends: whoever started it is gone."""
    while sys.stdin.buffer.read(4096):
        pass
    end_process()


def _serve_mlflow(bound: int) -> None:
    """Serve MLflow until the standard input ends, whose first line is the password."""
    auth = sys.stdin.buffer.readline().decode().strip()
    threading.Thread(target=_end_with_starter, daemon=True).start()
    from mlflow.server.fastapi_app import app

    serve(lambda port: OwnPagesOnly(app, port, "MLflow server", auth), bound)


if __name__ == "__main__":
    _serve_mlflow(int(sys.argv[1]))
