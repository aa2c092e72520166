"""Which oversubscription ratio lets the jobs of a device train the most units per second."""

from hpo_core.execution.ratio_tuning.choice import Together, best_of, is_falling
from hpo_core.execution.ratio_tuning.tuner import Found, RatioTuner, checked_ratios

__all__ = ["Found", "RatioTuner", "Together", "best_of", "checked_ratios", "is_falling"]
