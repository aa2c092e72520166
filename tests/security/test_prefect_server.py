"""Attacks on the Prefect server that we start: web pages in the user's browser, other names, other users, leaks."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import stat
import subprocess
import urllib.error
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from hpo_flows.prefect_api.shared_server import SharedServer
from tests.flows.conftest import Runner, server_file, wait_for_entries
from tests.flows.prefect_api import ask
from tests.security.listening import sockets_of
from tests.waiting import eventually

EVIL = "http://evil.example"
PREFECT = tuple(map(int, version("prefect").split(".")[:3]))
PATIENCE = 600.0


@pytest.fixture
def server(prefect_server: SharedServer) -> SharedServer:
    """That of all tests, which refuses whatever would change it."""
    return prefect_server


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: str) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def for_other_pages(self) -> bool:
        return "access-control-allow-origin" in self.headers


def send(server: SharedServer, method: str, path: str, body: object = None, **headers: str) -> Answer:
    """One request, with exactly these headers; names with ``_`` for ``-``."""
    port = int(server.url.rpartition(":")[2])
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"} | named)
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
    finally:
        connection.close()


def basic(server: SharedServer, auth: str | None = None) -> str:
    return "Basic " + base64.b64encode((auth or server.auth).encode()).decode()


def test_requests_from_another_site_are_refused(server: SharedServer) -> None:
    for origin in (EVIL, "null", "http://127.0.0.1:1", "http://localhost", server.url.replace("http", "https")):
        for method, path in (
            ("GET", "/api/health"),
            ("GET", "/api/admin/version"),
            ("GET", "/"),
            ("GET", "/ui-settings"),
        ):
            answer = send(server, method, path, Origin=origin, Authorization=basic(server))
            assert (answer.status, answer.for_other_pages) == (403, False), (origin, path)
        answer = send(server, "POST", "/api/flows/", {"name": "planted"}, Origin=origin, Authorization=basic(server))
        assert (answer.status, answer.for_other_pages) == (403, False)
        asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
        answer = send(server, "OPTIONS", "/api/flows/", Origin=origin, **asked)
        assert (answer.status, answer.for_other_pages) == (403, False)
    flows = ask(server.client_settings(), "flows/filter", {})
    assert "planted" not in {flow["name"] for flow in flows}


def test_requests_from_its_own_pages_are_served(server: SharedServer) -> None:
    for name in ("127.0.0.1", "localhost"):
        own = server.url.replace("127.0.0.1", name)
        answer = send(server, "GET", "/api/admin/version", Host=own[7:], Origin=own, Authorization=basic(server))
        assert answer.status == 200 and answer.headers["access-control-allow-origin"] == own
        assert send(server, "GET", "/ui-settings", Host=own[7:], Origin=own).status == 200


def test_a_change_needs_password_and_token(server: SharedServer) -> None:
    answer = send(server, "POST", "/api/flows/", {"name": "planted"}, Authorization=basic(server))
    assert answer.status == 403 and "Missing CSRF token" in answer.body
    plain = send(server, "POST", "/api/flows/", {"name": "planted"}, Content_Type="text/plain")
    assert plain.status in (401, 403), "a form's content type needs no permission of CORS"
    guessed = {"Prefect_Csrf_Token": "x", "Prefect_Csrf_Client": "y"}
    answer = send(server, "POST", "/api/flows/", {"name": "planted"}, Authorization=basic(server), **guessed)
    assert answer.status == 403
    for wrong in ("hpo:", "hpo:wrong", ":"):
        assert send(server, "GET", "/api/admin/version", Authorization=basic(server, wrong)).status == 401
    for path in ("/api/admin/version", "/api/csrf-token?client=y", "/api/admin/settings"):
        assert send(server, "GET", path).status == 401
    assert ask(server.client_settings(), "flows/", {"name": "mine"})["name"] == "mine"
    assert send(server, "GET", "/api/health").status == 200, "whoever waits for it has no password yet"


def test_requests_for_another_host_name_are_refused(server: SharedServer) -> None:
    """DNS rebinding: the name of an attacker's page points at 127.0.0.1 now, so that the origin is the same."""
    port = server.url.rpartition(":")[2]
    for host in (
        f"evil.example:{port}",
        "evil.example",
        "127.0.0.1",
        f"127.0.0.1.evil.example:{port}",
        f"[::1]:{port}",
        "",
    ):
        answer = send(server, "GET", "/api/admin/version", Host=host, Authorization=basic(server))
        assert (answer.status, answer.for_other_pages) == (403, False), host
        assert "through a tunnel use the same port" in answer.body


@pytest.mark.parametrize("name", ["out", "in"])
def test_web_sockets_are_checked_like_requests(server: SharedServer, name: str) -> None:
    """CORS does not cover them: a page of any site may open one."""
    address = server.api_url.replace("http", "ws") + f"/events/{name}"
    port = int(server.url.rpartition(":")[2])
    for origin, host in ((EVIL, f"127.0.0.1:{port}"), (None, f"evil.example:{port}")):
        at = f"ws://{host}/api/events/{name}"
        with socket.create_connection(("127.0.0.1", port), 60) as plain, pytest.raises(InvalidStatus) as caught:
            connect(at, origin=origin, sock=plain)  # type: ignore[arg-type]
        assert caught.value.response.status_code == 403
    if name == "in" and PREFECT < (3, 6, 14):
        return  # Prefect asks nobody who sends events for the password: SECURITY.md says so
    with connect(address, subprotocols=["prefect"], open_timeout=600) as opened:  # type: ignore[list-item]
        opened.send(json.dumps({"type": "auth", "token": "wrong"}))
        with pytest.raises(ConnectionClosed, match="Invalid token"):
            opened.recv(timeout=600)
    with connect(address, subprotocols=["prefect"], open_timeout=600) as opened:  # type: ignore[list-item]
        opened.send(json.dumps({"type": "auth", "token": server.auth}))
        assert json.loads(opened.recv(timeout=600))["type"] == "auth_success"


def test_the_servers_files_and_address_are_private(server: SharedServer) -> None:
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    files = [path for path in server.folder.iterdir() if path.is_file()]
    assert {"prefect.db", "server.log", server.secrets_file.name} <= {path.name for path in files}
    assert [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert [address.ip for address in sockets_of(psutil.Process(server.pid))] == ["127.0.0.1"]


def test_the_servers_environment_has_no_other_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPO_JOURNAL", "postgresql://me:pl4nted@host/db")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "pl4nted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "pl4nted")
    monkeypatch.setenv("PREFECT_SERVER_CORS_ALLOWED_ORIGINS", "*")
    server = SharedServer(tmp_path / "prefect")
    try:
        server.start()
        environment = psutil.Process(server.pid).environ()
    finally:
        server.close()
    assert "pl4nted" not in json.dumps(environment)
    assert "*" not in [value for name, value in environment.items() if "CORS" in name]


def wait_for_run(server: dict[str, str]) -> None:
    """A study that ends before its flow run is there does not say where the server is."""
    environment = {"PREFECT_API_URL": f"{server['url']}/api", "PREFECT_API_AUTH_STRING": server["auth"]}

    def runs() -> Any:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):  # it is starting
            return ask(environment, "flow_runs/filter", {})

    eventually(runs, PATIENCE)


@pytest.mark.slow
def test_the_password_is_only_in_its_file(tmp_path: Path) -> None:
    hpo = Runner(tmp_path, {}, prefect="auto")
    gate = tmp_path / "gate"
    gate.write_text("8")
    search = {"method": "random", "configs": 24, "max_resource": 2}
    process = hpo.start("tune", hpo.study("held", tracking={}, search=search, constants={"gate": str(gate)}))
    try:
        wait_for_entries(hpo, "toy", 4, process, PATIENCE)
        file = server_file(hpo, process, PATIENCE)
        wait_for_run(json.loads(file.read_text()))
        word = json.loads(file.read_text())["auth"].partition(":")[2]
        assert len(word) >= 32 and stat.S_IMODE(file.stat().st_mode) == 0o600
        encoded = base64.b64encode(f"hpo:{word}".encode()).decode()
        controller = psutil.Process(process.pid)
        family = [controller, *controller.children(recursive=True)]
        (server,) = [found for found in family if "hpo_flows.prefect_api.shared_server" in found.cmdline()]
        assert len(family) > 4, "server, workers, trainers"
        for found in family:
            try:
                assert word not in " ".join(found.cmdline())
                assert found == server or word not in json.dumps(found.environ()), found.cmdline()
            except psutil.NoSuchProcess:  # a trainer that ended
                continue
    finally:
        gate.unlink()
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, out + err
    assert word not in out + err and str(file) in err
    hpo("project", "toy")  # on a busy machine the end of a study does not wait for MLflow
    kept = [path for path in hpo.folder.rglob("*") if path.is_file() and path != file]
    assert {"journal.db", "server.log", "prefect.db", "report.html", "mlflow.db"} <= {path.name for path in kept}
    assert [path for path in kept if any(it.encode() in path.read_bytes() for it in (word, encoded))] == []
