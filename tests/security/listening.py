"""An attacker's server: it keeps what it is sent, and answers as an MLflow that says where files are to be written."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil


def sockets_of(process: psutil.Process, kind: str = "inet") -> list[Any]:
    """Addresses at which a process listens."""
    connections = getattr(process, "net_connections", None) or process.connections  # before psutil 6
    return [one.laddr for one in connections(kind) if one.status == psutil.CONN_LISTEN]


class Listening(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, artifacts: str = "mlflow-artifacts:/1", redirect: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.heard: list[tuple[str, dict[str, str]]] = []
        """Path and headers of every request."""
        self.artifacts = artifacts
        """Where a run's files are to be written."""
        self.redirect = redirect
        """Another server to send everybody to."""
        self.runs: dict[str, dict[str, Any]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def said(self) -> str:
        """All that was heard, as one text."""
        return "\n".join(f"{path} {headers}" for path, headers in self.heard)


class _Handler(BaseHTTPRequestHandler):
    server: Listening
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.heard.append((self.path, dict(self.headers.items())))
        if self.server.redirect:
            self.send_response(307)
            self.send_header("Location", self.server.redirect + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        found = self._found(json.loads(body) if body[:1] == b"{" else {})
        answer = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer

    def _found(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = self.path.partition("?")[0].partition("/mlflow/")[2]
        runs = self.server.runs
        if name.startswith("experiments/get"):
            return {
                "experiment": {
                    "experiment_id": "1", "name": "hpo", "artifact_location": self.server.artifacts,
                    "lifecycle_stage": "active",
                }
            }  # fmt: skip
        if name == "runs/create":
            info = {
                "run_id": f"{len(runs):032x}", "run_uuid": f"{len(runs):032x}", "experiment_id": "1",
                "status": "RUNNING", "start_time": 1, "lifecycle_stage": "active", "user_id": "",
                "artifact_uri": self.server.artifacts, "run_name": asked.get("run_name", ""),
            }  # fmt: skip
            runs[info["run_id"]] = {"info": info, "data": {}}
            return {"run": runs[info["run_id"]]}
        if name == "runs/get":
            wanted = self.path.partition("run_id=")[2].partition("&")[0] or asked.get("run_id", "")
            return {"run": runs[wanted]} if wanted in runs else {}
        if name == "runs/update":
            return {"run_info": runs[asked["run_id"]]["info"]}
        return {}


@contextmanager
def listening(artifacts: str = "mlflow-artifacts:/1", redirect: str = "") -> Iterator[Listening]:
    server = Listening(artifacts, redirect)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
