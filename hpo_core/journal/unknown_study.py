"""The error for a study that a journal does not hold, with the name that was probably meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from hpo_core.model.errors import StudyNotFoundError

LISTED = 20
"""Names that the message lists at most."""


def unknown_study(study: str, known: Sequence[str], place: str, cure: str) -> StudyNotFoundError:
    """The error to raise.

    Args:
        place: what holds the studies ``known``.

    >>> print(unknown_study("digit", ["digits", "texts"], "this journal", "Check the name."))
    Study 'digit' is not in this journal (it holds: digits, texts). Did you mean 'digits'? Check the name.
    """
    lower = {name.lower(): name for name in known}
    close = [lower[name] for name in get_close_matches(study.lower(), list(lower), n=3, cutoff=0.6)]
    close += [name for name in known if study and name.lower().startswith(study.lower()) and name not in close][:3]
    meant = f" Did you mean {' or '.join(repr(name) for name in close[:3])}?" if close else ""
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    listed = ", ".join(known[:LISTED]) or "no study"
    return StudyNotFoundError(f"Study {study!r} is not in {place} (it holds: {listed}{more}).{meant} {cure}")
