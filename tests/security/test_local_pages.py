"""The server of pages: what another user, another site or another name of this machine gets from it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator

import psutil
import pytest

from hpo_core.report.live import LocalServer, PageResponse
from tests.security.listening import sockets_of


@pytest.fixture
def server() -> Iterator[LocalServer]:
    made = LocalServer(lambda place: PageResponse(f"<p>page {len(place)}</p>") if place in ("", "version") else None)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join(600)


def ask(server: LocalServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{server.server_port}", **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
    connection.close()
    return found


def test_the_whole_address_is_served(server: LocalServer) -> None:
    status, body, headers = ask(server, f"/{server.word}/")
    assert (status, body) == (200, "<p>page 0</p>")
    assert headers["cache-control"] == "no-store" and headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert ask(server, f"/{server.word}/version?x=1", Host=f"localhost:{server.server_port}")[0] == 200
    assert ask(server, f"/{server.word}/", "HEAD")[:2] == (200, "")


@pytest.mark.parametrize("path", ["/", "/version", "/word/", "//", "/..//", "/%2e%2e/", ""])
def test_who_does_not_know_the_word_sees_nothing(server: LocalServer, path: str) -> None:
    status, body, _ = ask(server, path or "*")
    assert status == 404 and server.word not in body and "page" not in body


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "[::1]", ""])
def test_another_name_of_this_machine_is_refused(server: LocalServer, host: str) -> None:
    status, body, _ = ask(server, f"/{server.word}/", Host=host)
    assert status == 403 and "page" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_reading_is_served(server: LocalServer, method: str) -> None:
    assert ask(server, f"/{server.word}/", method)[0] == 501


@pytest.mark.parametrize("path", ["other", "../journal.db", "%2e%2e/journal.db", "/etc/passwd", "version/.."])
def test_there_are_no_files_below_it(server: LocalServer, path: str) -> None:
    assert ask(server, f"/{server.word}/{path}")[0] == 404


def test_it_listens_on_this_machine_only(server: LocalServer) -> None:
    listening = sockets_of(psutil.Process())
    assert {where.ip for where in listening if where.port == server.server_port} == {"127.0.0.1"}
