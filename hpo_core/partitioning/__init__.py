"""Partitions of data: split once, listed in a study, found on the workers."""

from hpo_core.partitioning.resolution import with_partitions
from hpo_core.partitioning.splitting import partition_data

__all__ = ["partition_data", "with_partitions"]
