"""Partitions of data: split once, listed in a study, found on the workers.

Names are imported when they are first asked for: workers use a module of it or two.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_core.partitioning.resolution import with_partitions
    from hpo_core.partitioning.splitting import partition_data

__all__ = ["partition_data", "with_partitions"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for."""
    module = {"partition_data": "splitting", "with_partitions": "resolution"}.get(name)
    if module is None:
        raise AttributeError(f"module 'hpo_core.partitioning' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value
