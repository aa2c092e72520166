"""All facts of a study, folded from its events."""

from hpo_core.state.best_results import Incumbent
from hpo_core.state.study_state import StudyState, retries_left
from hpo_core.state.trial_record import TrialRecord, is_complete

__all__ = ["Incumbent", "StudyState", "TrialRecord", "is_complete", "retries_left"]
