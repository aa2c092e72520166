"""The text of a journal entry: strict JSON on one line, and back.

An entry of an older format is read as this version would have written it (:mod:`hpo_core.journal.older_formats`).
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from hpo_core.journal.older_formats import upcast
from hpo_core.model.errors import HpoError, JournalError
from hpo_core.model.events import FORMAT, Entry


def encode_entry(entry: Entry) -> str:
    """Strict JSON on one line; NaN and infinities become the strings NaN, Infinity, -Infinity."""
    plain = msgspec.to_builtins(entry)
    try:
        return json.dumps(plain, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_spell_non_finite(plain), allow_nan=False, separators=(",", ":"))


def decode_entry(text: str | bytes) -> Entry:
    """Inverse of :func:`encode_entry`.

    Raises:
        JournalError: the text is no entry, or was written by a newer format.
    """
    try:
        if _is_older(text):
            return msgspec.convert(upcast(json.loads(text)), type=Entry, strict=False)
        entry = msgspec.json.decode(text, type=Entry, strict=False)
        if entry.format > FORMAT:
            raise _too_new(entry.format)
        return entry
    except HpoError:
        raise
    except Exception as error:  # whatever a damaged text makes a decoder raise, too deep a nesting among it
        written = _format_of(text)
        if written is not None and written > FORMAT:
            raise _too_new(written) from error
        shown = text[:200].decode("utf-8", "replace") if isinstance(text, bytes) else str(text)[:200]
        raise JournalError(
            f"Journal entry cannot be read ({error}): {shown!r}. Restore the journal from a backup; "
            "entries before it are intact and `hpo show NAME --at SEQ` still reads them."
        ) from error


def _is_older(text: str | bytes) -> bool:
    """By the last characters: ``format`` is an entry's last field."""
    end = text[-4:].decode("utf-8", "replace") if isinstance(text, bytes) else text[-4:]
    if end[:1] == ":" and end[-1:] == "}" and end[1:-1].isdigit():  # two digits
        return int(end[1:-1]) < FORMAT
    if end[1:2] == ":" and end[-1:] == "}" and end[2:-1].isdigit():
        return int(end[2:-1]) < FORMAT
    written = _format_of(text)  # rewritten by another program, with spaces or in another order
    return written is not None and written < FORMAT


def _too_new(written: int) -> JournalError:
    return JournalError(
        f"Journal entry has format {written}; this version reads up to {FORMAT}. "
        "Upgrade this package to the version that wrote the study."
    )


def _format_of(text: str | bytes) -> int | None:
    try:
        value = json.loads(text).get("format")
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return value if isinstance(value, int) else None


def _spell_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: _spell_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_non_finite(item) for item in value]
    return value
