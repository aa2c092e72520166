"""The text of a journal entry: strict JSON on one line, and back."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from hpo_core.model.errors import HpoError, JournalError
from hpo_core.model.events import FORMAT, Entry

_DECODER = msgspec.json.Decoder(Entry, strict=False)
"""Made at import: msgspec (0.22, too) crashes the process where two threads are the first to decode a type."""


def encode_entry(entry: Entry) -> str:
    """Strict JSON on one line; NaN and infinities become the strings NaN, Infinity, -Infinity."""
    plain = msgspec.to_builtins(entry)
    try:
        return json.dumps(plain, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_spell_non_finite(plain), allow_nan=False, separators=(",", ":"))


def decode_entry(text: str | bytes) -> Entry:
    """Read what :func:`encode_entry` wrote.

    Format 1 is the only one so far. Once an event changes its shape and ``FORMAT`` becomes 2, this is the place where
    an entry of format 1 is turned into what the new version would have written, before it is decoded.

    Raises:
        JournalError: the text is no entry, or has a newer format.
    """
    try:
        entry = _DECODER.decode(text)
        if entry.format > FORMAT:
            raise _too_new(entry.format)
        return entry
    except HpoError:
        raise
    except Exception as error:  # whatever a damaged text makes a decoder raise, too deep a nesting among it
        plain = _plain(text)
        written = _format_of(plain)
        if written is not None and written > FORMAT:
            raise _too_new(written) from error
        if _names_gone(plain):
            raise JournalError(
                f"Journal entry {plain['seq']}: a trial was trained beyond the search, which this version does not do; "
                "read this study with the version that wrote it. The entries before can be read: "
                f"hpo show NAME --at {plain['seq'] - 1}"
            ) from error
        shown = text[:200].decode("utf-8", "replace") if isinstance(text, bytes) else str(text)[:200]
        raise JournalError(
            f"Journal entry cannot be read ({error}): {shown!r}. Restore the journal from a backup; "
            "entries before it are intact and `hpo show NAME --at SEQ` still reads them."
        ) from error


def _too_new(written: int) -> JournalError:
    return JournalError(
        f"Journal entry has format {written}; this version reads up to {FORMAT}. "
        "Upgrade this package to the version that wrote the study."
    )


def _plain(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _format_of(plain: Any) -> int | None:
    try:
        return int(plain["format"])  # decoding takes "2" and 2.0 for 2, too
    except (ValueError, LookupError, TypeError, OverflowError):
        return None


_GONE = {"TrainingRequested", "TrialExtended", "TrialExtensionEnded"}
"""Facts of training beyond the search."""


def _names_gone(plain: Any) -> bool:
    try:
        facts = [plain["stimulus"], *plain["events"]]
        named = {fact["is"] for fact in facts} | {fact["stage"]["is"] for fact in facts if "stage" in fact}
        return isinstance(plain["seq"], int) and bool(named & (_GONE | {"Further"}))
    except (LookupError, TypeError):
        return False


def _spell_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: _spell_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_non_finite(item) for item in value]
    return value
