"""One search: decides, records, asks and tells."""

from hpo_core.study.study import Study

__all__ = ["Study"]
