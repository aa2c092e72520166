"""What to say of a damaged entry of a journal."""

from __future__ import annotations

from hpo_core.model.errors import JournalError


def damaged_entry(study: str, seq: int, error: Exception) -> JournalError:
    """What to say of an entry that cannot be what this package wrote."""
    return JournalError(
        f"Study {study!r}: entry {seq} of its journal is damaged, or does not follow from those before it "
        f"({error_words(error)}). Restore the journal from a backup; `hpo show {study} --at {seq - 1}` still reads "
        "what comes before."
    )


def error_words(error: Exception) -> str:
    """An error in one line."""
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
