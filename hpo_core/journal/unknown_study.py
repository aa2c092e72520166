"""The error for a study that a journal does not hold, with the name that was probably meant."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.model.errors import StudyNotFoundError
from hpo_core.model.short_text import did_you_mean

LISTED = 20
"""Names that the message lists at most."""


def unknown_study(study: str, known: Sequence[str], place: str, cure: str) -> StudyNotFoundError:
    """The error to raise.

    Args:
        place: what holds the studies ``known``.

    >>> print(unknown_study("digit", ["digits", "texts"], "this journal", "Check the name."))
    Study 'digit' is not in this journal (it holds: digits, texts); did you mean 'digits'? Check the name.
    """
    meant = did_you_mean(study, known)
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    listed = ", ".join(known[:LISTED]) or "no study"
    where = f"Study {study!r} is not in {place} (it holds: {listed}{more})"
    return StudyNotFoundError(f"{where}; {meant} {cure}" if meant else f"{where}. {cure}")
