"""Hyperparameter optimization with paper-exact methods and a journal that survives everything.

The public nouns. Everything else may move between versions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_core.journal.memory import MemoryJournal
    from hpo_core.journal.protocol import Journal
    from hpo_core.model.errors import HpoError
    from hpo_core.model.parameter_schedule import Schedule
    from hpo_core.model.trial import Checkpoint, Job, Outcome, Report
    from hpo_core.spec import StudySpec, load_spec
    from hpo_core.state import StudyState, TrialRecord
    from hpo_core.study import Study
    from hpo_core.training.saved_state import State

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "HpoError",
    "Job",
    "Journal",
    "MemoryJournal",
    "Outcome",
    "Report",
    "Schedule",
    "State",
    "Study",
    "StudySpec",
    "StudyState",
    "TrialRecord",
    "load_spec",
]

_HOMES = {
    "model.errors": ("HpoError",),
    "journal.protocol": ("Journal",),
    "journal.memory": ("MemoryJournal",),
    "model.parameter_schedule": ("Schedule",),
    "spec": ("StudySpec", "load_spec"),
    "state": ("StudyState", "TrialRecord"),
    "study": ("Study",),
    "training.saved_state": ("State",),
    "model.trial": ("Checkpoint", "Job", "Outcome", "Report"),
}


def __getattr__(name: str) -> Any:
    """Nouns are imported when they are first asked for: a script that plays a schedule waits for none of the rest."""
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"hpo_core.{module}"), name)
            return value
    raise AttributeError(f"module 'hpo_core' has no attribute {name!r}")
