"""A journal that was damaged: which entry, what is wrong with it, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError, JournalError


def damaged_entry(study: str, seq: int, error: Exception) -> JournalError:
    """What to say of an entry that cannot be what this package wrote."""
    return JournalError(
        f"Study {study!r}: entry {seq} of its journal is damaged, or does not follow from those before it "
        f"({_words(error)}). Restore the journal from a backup; `hpo show {study} --at {seq - 1}` still reads what "
        "comes before."
    )


@contextmanager
def damage_named(journal: Journal, study: str) -> Iterator[None]:
    """For whoever reads a study's entries: an error that only a damaged journal can explain is named as such.

    The journal is audited to find out; where it is clean the error is a defect of ours, and is raised as it is.

    Raises:
        JournalError: the journal is damaged.
    """
    try:
        yield
    except HpoError:
        raise
    except Exception as error:
        from hpo_core.replay.audit import audit

        report = audit(journal.entries(study), limit=1)
        if report.clean:
            raise
        finding = report.findings[0]
        raise JournalError(
            f"Study {study!r}: its journal is damaged ({_words(error)}); the first entry that the rules do not give is "
            f"{finding.seq} (`hpo audit {study}` shows it). Restore the journal from a backup."
        ) from error


def _words(error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
