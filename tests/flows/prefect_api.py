"""Requests to a Prefect API as its clients make them: with the password, and a CSRF token for what changes things."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any

_TRIES = 60
"""Of a request that a busy server refuses (503: SQLite is locked for the moment); Prefect's clients ask again, too."""


def ask(
    environment: Mapping[str, str], path: str, body: Any = None, method: str | None = None, timeout: float = 60
) -> Any:
    """The answer of the API that the environment names, as plain data."""
    url = environment["PREFECT_API_URL"]
    headers = {"Content-Type": "application/json"}
    if auth := environment.get("PREFECT_API_AUTH_STRING"):
        headers["Authorization"] = "Basic " + base64.b64encode(auth.encode()).decode()
    if body is not None or method not in (None, "GET"):
        client = uuid.uuid4()  # a name that two share: each token of the one ends the other's
        token = _answer(urllib.request.Request(f"{url}/csrf-token?client={client}", headers=headers), timeout, 422)
        if token is not None:
            headers |= {"Prefect-Csrf-Token": token["token"], "Prefect-Csrf-Client": str(client)}
    data = None if body is None else json.dumps(body).encode()
    return _answer(urllib.request.Request(f"{url}/{path}", data=data, headers=headers, method=method), timeout)


def _answer(request: urllib.request.Request, timeout: float, none: int | None = None) -> Any:
    for tries_left in reversed(range(_TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            if error.code == none:
                return None
            if error.code != 503 or not tries_left:
                raise
            time.sleep(1.0)
    raise AssertionError("unreachable")
