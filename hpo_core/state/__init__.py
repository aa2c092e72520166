"""All facts of a study, folded from its events."""

from hpo_core.state.study_state import Incumbent, StudyState, is_complete, retries_left
from hpo_core.state.trial_record import TrialRecord

__all__ = ["Incumbent", "StudyState", "TrialRecord", "is_complete", "retries_left"]
