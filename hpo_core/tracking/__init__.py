"""One-way copies of a study for other eyes. Importing this package imports no tracker."""

from hpo_core.tracking.mlflow_links import compare_url, run_url, shown_uri
from hpo_core.tracking.projection import Projection

__all__ = ["Projection", "compare_url", "run_url", "shown_uri"]
