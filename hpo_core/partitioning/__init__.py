"""Partitions of data: split once, listed in a study, found on the workers.

Names are imported when they are first asked for: workers use a module of it or two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_core.partitioning.resolution import with_partitions
    from hpo_core.partitioning.splitting import partition_data

__all__ = ["partition_data", "with_partitions"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for."""
    if name == "with_partitions":
        from hpo_core.partitioning.resolution import with_partitions as found
    elif name == "partition_data":
        from hpo_core.partitioning.splitting import partition_data as found
    else:
        raise AttributeError(f"module 'hpo_core.partitioning' has no attribute {name!r}")
    globals()[name] = found
    return found
