"""The only place for Prefect, Dask, the wall clock and the network.

``tune``, ``tune_file``, ``resume`` and ``rerun`` are Prefect flows with ``serve`` and ``deploy`` of their own; what
``hpo deploy`` registers. To call from Python: :func:`hpo_core.tune`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_flows.deployed.flows import rerun, resume, tune, tune_file

__all__ = ["rerun", "resume", "tune", "tune_file"]


def __getattr__(name: str) -> Any:
    """Import a flow, and Prefect with it, when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'hpo_flows' has no attribute {name!r}")
    return getattr(import_module("hpo_flows.deployed.flows"), name)
