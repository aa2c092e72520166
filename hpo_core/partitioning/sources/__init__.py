"""What can be split: arrays, tables, CSV, datasets."""

from hpo_core.partitioning.sources.examples import Examples, FileFormat
from hpo_core.partitioning.sources.opening import open_source

__all__ = ["Examples", "FileFormat", "open_source"]
