"""All facts of a study, folded from its events."""

from hpo_core.state.study_state import Incumbent, StudyState, TrialRecord, is_complete, retries_left

__all__ = ["Incumbent", "StudyState", "TrialRecord", "is_complete", "retries_left"]
