"""One-way copies of a study for other eyes. Importing this package imports no tracker."""

from hpo_core.tracking.base import Projection
from hpo_core.tracking.links import compare_url, run_url, shown_uri

__all__ = ["Projection", "compare_url", "run_url", "shown_uri"]
