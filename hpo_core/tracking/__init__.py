"""One-way copies of a study for other eyes. Importing this package imports no tracker."""

from hpo_core.tracking.tracker_links import compare_url, run_url

__all__ = ["compare_url", "run_url"]
