"""Which MLflow a study may name: that of this process's environment, one that is allowed, or a store in a file.

MLflow's client sends the credentials of its own environment variables (``MLFLOW_TRACKING_TOKEN``, ...) to whatever
server it talks to, and writes files where that server says. So a study names no server that nobody here trusts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from hpo_core.model.errors import SpecError
from hpo_core.model.file_urls import settled_database
from hpo_core.security.masking import without_credentials

OWN = ("MLFLOW_TRACKING_URI", "HPO_DATABASE")
ALLOWED = "HPO_ALLOWED_TRACKING"
_HTTP = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?(?:[/?#][^\\\s]*)?", re.IGNORECASE)
"""Strict: where two parsers of URLs can disagree about the host (backslashes, a user), there is no origin."""
_PORTS = {"http": 80, "https": 443}


def origin(uri: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of a web address; None for anything else.

    >>> origin("https://MLflow.example/x"), origin("http://good\\\\@evil"), origin("sqlite:///x.db")
    (('https', 'mlflow.example', 443), None, None)
    """
    found = _HTTP.fullmatch(uri)
    if found is None:
        return None
    scheme = found[1].lower()
    return scheme, found[2].lower(), int(found[3] or _PORTS[scheme])


def is_same(uri: str, other: str) -> bool:
    """True if both are the same server, or the same database."""
    uri, other = without_credentials(uri), without_credentials(other)
    found = origin(uri)
    return found == origin(other) if found is not None else settled_database(uri) == settled_database(other)


def is_own(uri: str, environment: Mapping[str, str] | None = None) -> bool:
    """True if it is the MLflow that this process's environment names."""
    found = os.environ if environment is None else environment
    return any(is_same(uri, own) for own in (found.get(name, "") for name in OWN) if own)


def is_allowed(uri: str, allowed: tuple[str, ...]) -> bool:
    """True if a list names it (``http://host:port`` stands for all of a server)."""
    return any(is_same(uri, entry) for entry in allowed)


def allowed_tracking(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The further servers that whoever runs this process trusts."""
    found = os.environ if environment is None else environment
    return tuple(entry for entry in (part.strip() for part in found.get(ALLOWED, "").split(",")) if entry)


def refuse_unknown(uri: str) -> None:
    """Refuse a server that only a study names.

    Raises:
        SpecError: it is neither this process's own, nor allowed, nor a store in a file.
    """
    settled = settled_database(uri)
    is_file = urlsplit(settled).scheme.partition("+")[0] in ("sqlite", "file") or Path(settled).is_absolute()
    if not (is_file or is_own(uri) or is_allowed(uri, allowed_tracking())):
        raise SpecError(
            f"tracking.mlflow = {without_credentials(uri)!r} is not the MLflow of this environment, which would send "
            "it credentials and write files where it says. If you trust it, set MLFLOW_TRACKING_URI to it, or add it "
            f"to {ALLOWED}; else leave tracking.mlflow out, or set it to off."
        )
