"""Finds out whether a journal is damaged, by auditing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpo_core.journal.damage import error_words
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError, JournalError
from hpo_core.replay.audit import audit


@contextmanager
def damage_named(journal: Journal, study: str) -> Iterator[None]:
    """Name a damaged journal where it is what made reading fail.

    The journal is audited to find out; where it is clean the error is a defect of ours, and is raised as it is.

    Raises:
        JournalError: the journal is damaged.
    """
    try:
        yield
    except HpoError:
        raise
    except Exception as error:
        report = audit(journal.entries(study), limit=1)
        if report.clean:
            raise
        finding = report.findings[0]
        raise JournalError(
            f"Study {study!r}: its journal is damaged ({error_words(error)}); the first entry that the rules do not "
            f"give is {finding.seq} (`hpo audit {study}` shows it). Restore the journal from a backup."
        ) from error
