"""The process of MLflow's server: ``python -m hpo_flows.home_ui.mlflow_process SOCKET``.

MLflow has no password of its own. Here each request needs one (HTTP's basic authentication), because other users of the
machine reach the port; requests under another host name, or from another site's page, are refused.

The password comes in the first line of the standard input. When that ends, so does this process: whoever started it is
gone.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import sys
import threading
from hmac import compare_digest
from typing import Any

from hpo_flows.prefect_api.server_process import App, OwnPagesOnly, Receive, Scope, Send

_END_SECONDS = 5.0


class WithPassword:
    """ASGI middleware: refuses requests without the password."""

    def __init__(self, app: App, auth: str) -> None:
        self._app = app
        self._wanted = b"Basic " + base64.b64encode(auth.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope.get("headers", []) if name == b"authorization"]
        if scope["type"] == "lifespan" or (len(given) == 1 and compare_digest(given[0], self._wanted)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers: list[Any] = [(b"www-authenticate", b'Basic realm="hpo"'), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b""})


def _end_with_starter() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    timer = threading.Timer(_END_SECONDS, os._exit, args=(0,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def main(listening: int) -> None:
    """Serve until the standard input ends."""
    auth = sys.stdin.buffer.readline().decode().strip()
    threading.Thread(target=_end_with_starter, daemon=True).start()
    import uvicorn
    from mlflow.server.fastapi_app import app

    with socket.socket(fileno=listening) as bound:
        guarded = OwnPagesOnly(WithPassword(app, auth), bound.getsockname()[1], "MLflow server")
        config = uvicorn.Config(guarded, log_level="warning", timeout_graceful_shutdown=3)
        uvicorn.Server(config).run(sockets=[bound])


if __name__ == "__main__":
    main(int(sys.argv[1]))
