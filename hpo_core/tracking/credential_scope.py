"""Which MLflow gets our credentials: the one of this process, and no server that a study names.

The own one is ``MLFLOW_TRACKING_URI`` (or ``HPO_DATABASE``) of the environment. A server that a study names besides
gets no password, token, signature or client certificate, and decides nothing about files: it stores them itself, or
there are none. ``HPO_ALLOWED_TRACKING`` names further servers: deployed flows may use them, and they may say where
files go. They get no credentials either.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from hpo_core.home import settled_database
from hpo_core.security.masking import without_credentials

OWN = ("MLFLOW_TRACKING_URI", "HPO_DATABASE")
ALLOWED = "HPO_ALLOWED_TRACKING"
CREDENTIALS = (
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_AUTH",
    "MLFLOW_TRACKING_AWS_SIGV4",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
)
"""All that MLflow's client sends to, or uses for, whatever server it is told to talk to."""
_DATABASE_CREDENTIALS = ("PGPASSWORD", "MYSQL_PWD")
_HTTP = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?(?:[/?#][^\\\s]*)?", re.IGNORECASE)
"""Strict: where two parsers of URLs can disagree about the host (backslashes, a user), there is no origin."""
_PORTS = {"http": 80, "https": 443}
_STORED_BY_SERVER = frozenset({"mlflow-artifacts", "http", "https"})
log = logging.getLogger("hpo.tracking")


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
    """Whether both are the same server, or the same database."""
    uri, other = without_credentials(uri), without_credentials(other)
    found = origin(uri)
    return found == origin(other) if found is not None else settled_database(uri) == settled_database(other)


def is_own(uri: str, environment: Mapping[str, str] | None = None) -> bool:
    """Whether it is the MLflow that this process's environment names."""
    found = os.environ if environment is None else environment
    return any(is_same(uri, own) for own in (found.get(name, "") for name in OWN) if own)


def is_allowed(uri: str, allowed: tuple[str, ...]) -> bool:
    """Whether a list names it (``http://host:port`` stands for all of a server)."""
    return any(is_same(uri, entry) for entry in allowed)


def allowed_tracking(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The further servers that whoever runs this process trusts."""
    found = os.environ if environment is None else environment
    return tuple(entry for entry in (part.strip() for part in found.get(ALLOWED, "").split(",")) if entry)


def may_say_where(tracking_uri: str, artifact_uri: str) -> bool:
    """Whether files may be written to where a store says: a foreign one must keep them itself.

    MLflow's client takes a run's place of files from the server, and would write to any path of this machine, or with
    its cloud credentials into any bucket.
    """
    if urlsplit(tracking_uri).scheme.startswith("sqlite") or is_own(tracking_uri):
        return True
    return is_allowed(tracking_uri, allowed_tracking()) or urlsplit(artifact_uri).scheme in _STORED_BY_SERVER


@contextlib.contextmanager
def credentials_for(tracking_uri: str) -> Iterator[None]:
    """Give a foreign server nothing of ours while MLflow's client is used in this process.

    MLflow reads the variables, and ``~/.mlflow/credentials``, again for every request.
    """
    if is_own(tracking_uri) or (origin(without_credentials(tracking_uri)) is None and not _is_database(tracking_uri)):
        yield
        return
    left = CREDENTIALS + (_DATABASE_CREDENTIALS if _is_database(tracking_uri) else ())
    taken = {name: os.environ.pop(name) for name in sorted(left) if name in os.environ}
    if taken:
        log.warning(
            "%s %s not used for MLflow at %s: MLFLOW_TRACKING_URI names %s. Set it to that server if it is yours.",
            ", ".join(taken),
            "is" if len(taken) == 1 else "are",
            without_credentials(tracking_uri),
            "another one" if os.environ.get("MLFLOW_TRACKING_URI") else "none",
        )
    try:
        with _no_credentials_file():
            yield
    finally:
        os.environ.update(taken)


def _is_database(uri: str) -> bool:
    """On a server: one in a file asks for no password."""
    return urlsplit(uri).scheme.partition("+")[0] in _SERVED


_SERVED = frozenset({"postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle", "cockroachdb"})


@contextlib.contextmanager
def _no_credentials_file() -> Iterator[None]:
    """MLflow has no setting against its file of credentials; a test notices where this takes no effect any more."""
    if not Path("~/.mlflow/credentials").expanduser().exists():
        yield  # and MLflow, which takes long to import, is not imported before its time
        return
    from mlflow.utils import credentials

    before = credentials._read_mlflow_creds_from_file
    credentials._read_mlflow_creds_from_file = lambda: (None, None)
    try:
        yield
    finally:
        credentials._read_mlflow_creds_from_file = before
