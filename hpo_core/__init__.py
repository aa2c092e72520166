"""Hyperparameter optimization with paper-exact methods and a journal that survives everything.

The public nouns. Everything else may move between versions.
"""

from hpo_core.errors import HpoError
from hpo_core.journal.base import Journal
from hpo_core.journal.memory import MemoryJournal
from hpo_core.spec import StudySpec, load_spec
from hpo_core.state import StudyState, TrialRecord
from hpo_core.study import Study
from hpo_core.trial import Checkpoint, Job, Outcome, Report

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "HpoError",
    "Job",
    "Journal",
    "MemoryJournal",
    "Outcome",
    "Report",
    "Study",
    "StudySpec",
    "StudyState",
    "TrialRecord",
    "load_spec",
]
