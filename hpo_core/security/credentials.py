"""Passwords in URLs, and settings that open our services: finds and removes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_plus

_SECRET = re.compile(
    r"password|passwd|passphrase|pwd|token|secret|key|credential|odbc_connect|^pass$|^sig$|signature", re.IGNORECASE
)
_FILES = frozenset({"sslkey"})
"""Arguments of PostgreSQL that sound like a secret but name a file."""
_ARGUMENT = re.compile(r"(?<=[?&;])([^=&;?\s]{1,200})=([^&\s]*)")
_HTTP_USER = re.compile(r"^(https?://)[^/?#]*@", re.IGNORECASE)
_DATABASE_USER = re.compile(r"^(.*?://)[^:/]*(?::[^@]*)?@")
"""As SQLAlchemy parses it: a password may contain a slash."""
_ANY_USER = re.compile(r"://[^:/@\s]{0,500}(?::[^@\s]{0,500})?@")


def holds_credentials(url: str) -> bool:
    """Whether a URL contains a user or a password, before its host or as an argument.

    >>> [holds_credentials(u) for u in ("http://h:5000/@x", "http://me:pw@h", "postgresql://h/db?user=me&password=pw")]
    [False, True, True]
    """
    return _user(url).match(url) is not None or any(
        is_secret_name(name) and value != "" for name, value in _ARGUMENT.findall(url)
    )


def without_credentials(url: str) -> str:
    """A URL without user and password, with secret arguments masked, for logs.

    >>> without_credentials("postgresql://me:pw@h/db?password=pw&sslmode=require")
    'postgresql://h/db?password=***&sslmode=require'
    """
    return without_secret_arguments(_user(url).sub(r"\1", url))


def without_secret_arguments(url: str) -> str:
    """A URL with its secret arguments masked; user and password before the host stay."""
    return _ARGUMENT.sub(lambda found: f"{found[1]}=***" if is_secret_name(found[1]) else found[0], url)


def without_urls_credentials(text: str) -> str:
    """A message without the credentials of URLs in it; in doubt a part is removed."""
    return without_secret_arguments(_ANY_USER.sub("://", text))


def _user(url: str) -> re.Pattern[str]:
    return _HTTP_USER if url.lower().startswith(("http:", "https:")) else _DATABASE_USER


def is_secret_name(name: str) -> bool:
    """Whether an argument or environment variable of this name holds a secret."""
    plain = unquote_plus(name)
    return plain not in _FILES and _SECRET.search(plain) is not None


_PRIVATE = frozenset(
    {
        "HPO_JOURNAL",
        "HPO_DATABASE",
        "HPO_FOLLOW_TRACKING_URI",
        "MLFLOW_TRACKING_USERNAME",
        "MLFLOW_BACKEND_STORE_URI",
        "MLFLOW_REGISTRY_STORE_URI",
        "PREFECT_CLIENT_CUSTOM_HEADERS",
        "PREFECT_API_AUTH_STRING",
        "PREFECT_SERVER_API_AUTH_STRING",
        "PREFECT_API_DATABASE_CONNECTION_URL",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL",
        "PGPASSFILE",
        "PGSERVICE",
        "PGSERVICEFILE",
        "DASK_INTERNAL_INHERIT_CONFIG",
    }
)
_SERVICES = ("HPO_", "MLFLOW_", "PREFECT_", "PG", "DASK_")


def is_private_setting(name: str, value: str) -> bool:
    """Whether an environment variable is a credential of journal, database, MLflow, Prefect or Dask.

    Training code gets none of these. It keeps those that it may need itself (AWS_*, HF_TOKEN, WANDB_API_KEY).

    >>> [is_private_setting(n, "x") for n in ("HPO_JOURNAL", "PGPASSWORD", "PREFECT_API_KEY", "AWS_SECRET_ACCESS_KEY")]
    [True, True, True, False]
    """
    if name in _PRIVATE:
        return True
    return name.startswith(_SERVICES) and (is_secret_name(name) or "_TLS_" in f"{name}_" or holds_credentials(value))


def without_private_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment for processes that run user code: without private settings."""
    return {name: value for name, value in environment.items() if not is_private_setting(name, value)}
