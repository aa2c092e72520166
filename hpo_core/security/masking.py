"""Masks secrets in texts of training functions and libraries before they are recorded, logged or shown.

Known secrets are the values of environment variables named like one (``..._PASSWORD``, ``..._TOKEN``, ``..._KEY``), the
passwords in URLs of any variable, and those given to :func:`add_secrets_of`. A secret is masked as it is and as URLs
quote it; so are user and password in any URL.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

import msgspec

from hpo_core.model.errors import HpoError
from hpo_core.model.trial import Report

_SECRET = re.compile(
    r"password|passwd|passphrase|pwd|token|secret|key|credential|odbc_connect|^pass$|^sig$|signature", re.IGNORECASE
)
_FILES = frozenset({"sslkey"})
"""Arguments of PostgreSQL that sound like a secret but name a file."""
_SHORT_ARGUMENT = re.compile(r"(?<=[?&;])([^=&;?\s]{1,200})=([^&\s]*)")
_HTTP_LOGIN = re.compile(r"^(https?://)[^/?#]*@", re.IGNORECASE)
_DATABASE_LOGIN = re.compile(r"^(.*?://)[^:/]*(?::[^@]*)?@")
"""Login of a database's URL as SQLAlchemy parses it: a password may contain a slash."""
_ANY_USER = re.compile(r"://[^:/@\s]{0,500}(?::[^@\s]{0,500})?@")


def holds_credentials(url: str) -> bool:
    """True if a URL contains a user or a password, before its host or as an argument.

    >>> [holds_credentials(u) for u in ("http://h:5000/@x", "http://me:pw@h", "postgresql://h/db?user=me&password=pw")]
    [False, True, True]
    """
    if url.startswith("sqlite"):  # in the path of a file nothing is secret
        url = f"?{url.partition('?')[2]}"
    return _user(url).match(url) is not None or any(
        is_secret_name(name) and value != "" for name, value in _SHORT_ARGUMENT.findall(url)
    )


def without_credentials(url: str) -> str:
    """A URL without user and password, with secret arguments masked, for logs.

    >>> without_credentials("postgresql://me:pw@h/db?password=pw&sslmode=require")
    'postgresql://h/db?password=***&sslmode=require'
    """
    return without_secret_arguments(_user(url).sub(r"\1", url))


def without_secret_arguments(url: str) -> str:
    """A URL with its secret arguments masked; user and password before the host stay."""
    return _SHORT_ARGUMENT.sub(lambda found: f"{found[1]}=***" if is_secret_name(found[1]) else found[0], url)


def without_urls_credentials(text: str) -> str:
    """A message without the credentials of URLs in it; in doubt a part is removed."""
    return without_secret_arguments(_ANY_USER.sub("://", text))


def _user(url: str) -> re.Pattern[str]:
    return _HTTP_LOGIN if url.lower().startswith(("http:", "https:")) else _DATABASE_LOGIN


def is_secret_name(name: str) -> bool:
    """True if an argument or environment variable of this name holds a secret."""
    plain = unquote_plus(name)
    return plain not in _FILES and _SECRET.search(plain) is not None


_PRIVATE = frozenset(
    {
        "HPO_JOURNAL",
        "HPO_DATABASE",
        "HPO_FOLLOW",
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
    """True if an environment variable is a credential of journal, database, MLflow, Prefect or Dask.

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


MASK = "***"
MIN_SECRET_LENGTH = 6
"""Shorter values are not masked: they are part of ordinary words."""
_PLAIN_WORDS = frozenset({"default", "disabled", "enabled", "required", "optional", "always", "prefer", "allow"})
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})
_AUTH = re.compile(r"auth(?!or)", re.IGNORECASE)
_PLACE = re.compile(r"(FILE|PATH|DIR|FOLDER|SOCK|HOME|CERT)$", re.IGNORECASE)
_AMOUNT = re.compile(r"tokens|max|min|limit|size|count|length|ttl|timeout|seconds|ports?$", re.IGNORECASE)
_USER = re.compile(r"""[a-z][a-z0-9+.-]{0,30}://([^:/?#\s"'@]*)(?::([^@\s"']*))?@""", re.IGNORECASE)
_HTTP_USER = re.compile(r"""https?://([^:/?#\s"']*)(?::([^/?#\s"']*))?@""", re.IGNORECASE)
_DATABASE_USER = re.compile(r"[^:/]+://([^:/]*)(?::([^@]*))?@.*", re.DOTALL)
"""A whole value, as SQLAlchemy parses it: a password may contain slashes and spaces."""
_ARGUMENT = re.compile(r"[?&;]([^=&;?\s]+)=([^&\s\"']*)")
_added_secrets: set[str] = set()


def add_secrets_of(value: str) -> None:
    """Mask from now on the secrets in a setting that is not in the environment (a URL, or ``user:password``)."""
    _added_secrets.update(_secrets_in("", value))


def masked(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text with all secrets replaced by ``***``.

    >>> masked("cannot reach http://me:pw@host/x: s3cret-of-mine", {"MY_TOKEN": "s3cret-of-mine"})
    'cannot reach http://host/x: ***'
    """
    if not text:
        return text
    variables = os.environ if environment is None else environment
    pattern = _pattern(_known(tuple(variables.items()), frozenset(_added_secrets)))
    return without_urls_credentials(text if pattern is None else pattern.sub(MASK, text))


def masked_report(report: Report) -> Report:
    """A report with secrets masked in its texts; numbers stay."""
    texts = (report.message, report.detail, *report.unrestored, *(report.warnings or ()))
    safe = tuple(masked(text) for text in texts)
    if safe == texts:
        return report
    lines, warnings = safe[2 : 2 + len(report.unrestored)], safe[2 + len(report.unrestored) :]
    changes = {"message": safe[0], "detail": safe[1], "unrestored": lines, "warnings": warnings or msgspec.UNSET}
    return msgspec.structs.replace(report, **changes)


@contextmanager
def masked_errors() -> Iterator[None]:
    """Context manager: replaces an error whose text or cause contains a secret by one with it masked.

    Raises:
        HpoError: in place of such an error; a subclass of HpoError keeps its class.
    """
    try:
        yield
    except Exception as error:
        shown = "".join(traceback.format_exception(error))
        if masked(shown) == shown:
            raise
        safe = masked(str(error))
        if isinstance(error, HpoError):
            raise type(error)(safe) from None
        raise HpoError(f"{type(error).__name__}: {safe}") from None


def mask_logs() -> None:
    """Mask secrets in all log records of this process from now on."""
    before: Any = logging.getLogRecordFactory()
    if getattr(before, "masks_secrets", False):
        return

    def made(*arguments: Any, **settings: Any) -> logging.LogRecord:
        record: logging.LogRecord = before(*arguments, **settings)
        _mask_record(record)
        return record

    made.masks_secrets = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(made)


def _mask_record(record: logging.LogRecord) -> None:
    try:
        text = record.getMessage()
    except Exception:
        return  # logging itself reports the wrong arguments
    if (safe := masked(text)) != text:
        record.msg, record.args = safe, ()
    if record.exc_info and record.exc_info[1] is not None:
        shown = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        if (safe := masked(shown)) != shown:
            record.exc_text, record.exc_info = safe, None


@lru_cache(maxsize=16)
def _known(environment: tuple[tuple[str, str], ...], added: frozenset[str]) -> frozenset[str]:
    found = set(added)
    for name, value in environment:
        found |= _secrets_in(name, value)
    return frozenset(value for value in found if len(value) >= MIN_SECRET_LENGTH and value not in _PLAIN_WORDS)


def _secrets_in(name: str, value: str) -> set[str]:
    # Secret parts of a variable's value: all of it because of its name, or passwords within it.
    found: set[str] = set()
    if _names_secret(name, value):
        found.add(value)
        if ":" in value:  # user:password
            found.add(value.partition(":")[2])
    for password in _passwords_in(value):
        found |= {password, unquote(password)}
    for argument, given in _ARGUMENT.findall(value):
        if is_secret_name(argument):
            found |= {given, unquote_plus(given)}
    return found - {"", MASK}


def _passwords_in(value: str) -> Iterator[str]:
    pairs: list[tuple[str, str]] = [*_HTTP_USER.findall(value), *_USER.findall(value)]
    if not value.lower().startswith("http") and (whole := _DATABASE_USER.fullmatch(value)) is not None:
        pairs.append((whole[1], whole[2] or ""))
    for user, password in pairs:
        if password:
            yield password
        elif value.lower().startswith("http") and len(user) >= 2 * MIN_SECRET_LENGTH:
            yield user  # https://TOKEN@host


def _names_secret(name: str, value: str) -> bool:
    if name.upper() in _NO_SECRETS or not (is_secret_name(name) or _AUTH.search(name)):
        return False
    if value.startswith(("/", "~", ".")) and (_PLACE.search(name) or Path(value).exists()):
        return False
    return not (_AMOUNT.search(name) and value.replace(".", "", 1).isdigit())


@lru_cache(maxsize=16)
def _pattern(values: frozenset[str]) -> re.Pattern[str] | None:
    plain = {value.encode("utf-8", "backslashreplace").decode() for value in values}
    forms = sorted(values | plain | {quote(value, safe="") for value in plain}, key=lambda form: (-len(form), form))
    return re.compile("|".join(map(re.escape, forms))) if forms else None
