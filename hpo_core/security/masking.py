"""Secrets out of texts: what training functions and libraries say is kept, logged and shown, passwords are not.

Known secrets are the values of environment variables with telling names (``..._PASSWORD``, ``..._TOKEN``, ``..._KEY``),
the passwords in URLs and connection strings that any variable holds, and what :func:`remember` was told. They are
found as they are, and as Python, JSON, HTML, URLs and Basic authentication write them. Beside these, whatever looks
like a secret is masked: ``scheme://user:password@``, ``password=...``, ``Authorization: ...``.

A secret that a function takes apart, encrypts, or reads from a file cannot be recognized.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import msgspec

from hpo_core.model.errors import HpoError
from hpo_core.model.trial import Report
from hpo_core.security.credentials import is_secret_name, without_urls_credentials

STARS = "***"
SHORTEST = 6
"""Shorter values are part of ordinary words."""
_EDGE = 4
"""Of a secret that a limit of length cut through, so many characters at least are recognized."""
_PLAIN_WORDS = frozenset({"default", "disabled", "enabled", "required", "optional", "always", "prefer", "allow"})
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})
_AUTH = re.compile(r"auth(?!or)", re.IGNORECASE)
_PLACE = re.compile(r"(FILE|PATH|DIR|FOLDER|SOCK|HOME|CERT)$", re.IGNORECASE)
_AMOUNT = re.compile(r"tokens|max|min|limit|size|count|length|ttl|timeout|seconds|ports?$", re.IGNORECASE)
_USER = re.compile(r"""[a-z][a-z0-9+.-]{0,30}://([^:/?#\s"'@]*)(?::([^@\s"']*))?@""", re.IGNORECASE)
_HTTP_USER = re.compile(r"""https?://([^:/?#\s"']*)(?::([^/?#\s"']*))?@""", re.IGNORECASE)
_DATABASE_USER = re.compile(r"[^:/]+://([^:/]*)(?::([^@]*))?@.*", re.DOTALL)
"""A whole value, as SQLAlchemy reads it: a password may hold slashes and spaces."""
_ARGUMENT = re.compile(r"[?&;]([^=&;?\s]+)=([^&\s\"']*)")
_ASSIGNED = re.compile(
    r"""(?P<name>(?:password|passwd|passphrase|secret|credentials?|(?:api|access|auth|private|refresh|session|security|id)[_-]?(?:key|token)|(?<![a-z])pwd)[\w-]{0,40}
        ["']?\s{0,9}(?:=|:)\s{0,9})
        (?P<value>"[^"\n]{1,500}"|'[^'\n]{1,500}'|\{[^}\n]{1,500}\}|[^\s"',;&(){}\[\]]{1,500})""",
    re.IGNORECASE | re.VERBOSE,
)
_AUTHORIZATION = re.compile(
    r"""(?P<name>\b(?:Authorization["']?\s{0,9}[:=]\s{0,9}["']?(?:\w{1,20}\s{1,9})?|Bearer\s{1,9}|Basic\s{1,9}(?=[A-Za-z0-9+/=]{8})))
        (?P<value>[A-Za-z0-9._~+/=-]{4,9999})""",
    re.IGNORECASE | re.VERBOSE,
)
_remembered: set[str] = set()


def remember(value: str) -> None:
    """A setting that is not in the environment: its secrets are masked from now on (a URL, or ``user:password``)."""
    _remembered.update(_secrets_in("", value))


def known_secrets(environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """All values that must not be shown, as this process knows them."""
    found = os.environ if environment is None else environment
    return _known(tuple(found.items()), frozenset(_remembered))


def masked(text: str, environment: Mapping[str, str] | None = None) -> str:
    """A text fit to be kept and shown.

    >>> masked("cannot reach http://me:pw@host/x: s3cret-of-mine", {"MY_TOKEN": "s3cret-of-mine"})
    'cannot reach http://host/x: ***'
    """
    if not text:
        return text
    pattern, forms = _pattern(known_secrets(environment))
    if pattern is not None:
        text = _cut_ones(pattern.sub(STARS, text), forms)
    text = without_urls_credentials(text)
    text = _AUTHORIZATION.sub(rf"\g<name>{STARS}", text)
    return _ASSIGNED.sub(_starred, text)


def masked_report(report: Report) -> Report:
    """A report whose texts hold no secret; numbers are left alone."""
    texts = (report.message, report.detail, *report.unrestored)
    safe = tuple(masked(text) for text in texts)
    if safe == texts:
        return report
    return msgspec.structs.replace(report, message=safe[0], detail=safe[1], unrestored=safe[2:])


@contextmanager
def masked_errors() -> Iterator[None]:
    """Around what others show the errors of: one whose text or cause holds a secret is raised anew without it.

    Raises:
        HpoError: in place of such an error; one of ours stays of its kind.
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
    """From now on no log record of this process holds a secret, whoever makes and writes it."""
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
        return  # logging itself says what is wrong with it
    if (safe := masked(text)) != text:
        record.msg, record.args = safe, ()
    if record.exc_info and record.exc_info[1] is not None:
        shown = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        if (safe := masked(shown)) != shown:
            record.exc_text, record.exc_info = safe, None


@lru_cache(maxsize=16)
def _known(environment: tuple[tuple[str, str], ...], remembered: frozenset[str]) -> frozenset[str]:
    found = set(remembered)
    for name, value in environment:
        found |= _secrets_in(name, value)
    users = {value for name, value in environment if name.upper().endswith(("USERNAME", "USER")) and value}
    named = [value for name, value in environment if _names_secret(name, value)]
    found |= {_basic(f"{user}:{secret}") for user in users for secret in named}
    return frozenset(value for value in found if len(value) >= SHORTEST and value not in _PLAIN_WORDS)


def _secrets_in(name: str, value: str) -> set[str]:
    """What of a variable's value is secret: all of it by its name, passwords by their place in it."""
    found: set[str] = set()
    if _names_secret(name, value):
        found.add(value)
        if ":" in value:  # user:password
            found |= {value.partition(":")[2], _basic(value)}
    for user, password in _users_in(value):
        found |= {password, unquote(password), _basic(f"{unquote(user)}:{unquote(password)}")}
    for argument, given in _ARGUMENT.findall(value):
        if is_secret_name(argument):
            found |= {given, unquote_plus(given)}
            found |= {_bare(inner["value"]) for inner in _ASSIGNED.finditer(unquote_plus(given))}
    found |= {_bare(inner["value"]) for inner in _ASSIGNED.finditer(value)}
    found |= {inner["value"] for inner in _AUTHORIZATION.finditer(value)}
    return found - {"", STARS}


def _users_in(value: str) -> Iterator[tuple[str, str]]:
    pairs: list[tuple[str, str]] = [*_HTTP_USER.findall(value), *_USER.findall(value)]
    if not value.lower().startswith("http") and (whole := _DATABASE_USER.fullmatch(value)) is not None:
        pairs.append((whole[1], whole[2] or ""))
    for user, password in pairs:
        if password:
            yield user, password
        elif value.lower().startswith("http") and len(user) >= 2 * SHORTEST:
            yield "", user  # https://TOKEN@host


def _names_secret(name: str, value: str) -> bool:
    if name.upper() in _NO_SECRETS or not (is_secret_name(name) or _AUTH.search(name)):
        return False
    if value.startswith(("/", "~", ".")) and (_PLACE.search(name) or Path(value).exists()):
        return False
    return not (_AMOUNT.search(name) and value.replace(".", "", 1).isdigit())


def _bare(value: str) -> str:
    return value[1:-1] if value[:1] in "\"'{" and len(value) > 1 else value


def _starred(found: re.Match[str]) -> str:
    value = found["value"]
    closed = value[:1] if value[:1] in "\"'" else ""
    return found[0] if STARS in value else f"{found['name']}{closed}{STARS}{closed}"


def _basic(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogateescape")).decode().rstrip("=")


@lru_cache(maxsize=16)
def _pattern(values: frozenset[str]) -> tuple[re.Pattern[str] | None, tuple[str, ...]]:
    forms = sorted({form for value in values for form in _forms(value)}, key=lambda form: (-len(form), form))
    return (re.compile("|".join(map(re.escape, forms))), tuple(forms)) if forms else (None, ())


def _forms(value: str) -> set[str]:
    """A value as texts may hold it."""
    plain = value.encode("utf-8", "backslashreplace").decode()
    forms = {value, plain, " ".join(value.split()), value.strip(), _basic(value), html.escape(plain)}
    for coded in (quote(plain), quote(plain, safe=""), quote_plus(plain)):
        forms |= {coded, re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), coded)}
    for written in (repr(value), repr(value.encode("utf-8", "replace"))[1:], json.dumps(value), ascii(value)):
        forms |= {written[1:-1], repr(written)[2:-2], json.dumps(written[1:-1])[1:-1]}
    forms |= {value.replace("'", "\\'"), value.replace('"', '\\"'), value.replace("'", "'\"'\"'")}
    if "\n" in value:  # a private key: each of its lines
        forms |= {line.strip() for line in value.splitlines() if len(line.strip()) >= 16 and "-----" not in line}
    return {form for form in forms if len(form) >= SHORTEST}


def _cut_ones(text: str, forms: tuple[str, ...]) -> str:
    """Limits of length cut texts where they are made, where secrets are not known: the rest of one may be left."""
    if text.endswith("..."):
        kept = text[:-3]
        for form in forms:
            long = next((n for n in range(min(len(form) - 1, len(kept)), _EDGE - 1, -1) if kept.endswith(form[:n])), 0)
            if long:
                text = f"{kept[:-long]}{STARS}..."
                break
    lead = "..." if text.startswith("...") else ""
    if lead or len(text) >= 4000:
        kept = text[len(lead) :]
        for form in forms:
            long = next(
                (n for n in range(min(len(form) - 1, len(kept)), _EDGE - 1, -1) if kept.startswith(form[-n:])), 0
            )
            if long:
                return f"{lead}{STARS}{kept[long:]}"
    return text
