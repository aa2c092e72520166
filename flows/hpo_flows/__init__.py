"""The only place for Prefect, Dask, the wall clock and the network.

``tune``, ``tune_file``, ``resume`` and ``rerun`` are Prefect flows with ``serve`` and ``deploy`` of their own; what
``hpo deploy`` registers. To call from Python: :func:`hpo_core.tune`. ``rung``, ``generation``, ``epoch`` and ``job``
are the Prefect tasks of every study, for hooks.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_flows.deployed.flows import rerun, resume, tune, tune_file
    from hpo_flows.prefect_pages.tune_flow import epoch, generation, job, rung

__all__ = ["epoch", "generation", "job", "rerun", "resume", "rung", "tune", "tune_file"]
# of a flow that a script calls without a server: Prefect's own 20 s are too few for a busy machine
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
_TASKS = ("epoch", "generation", "job", "rung")


def __getattr__(name: str) -> Any:
    """Import a flow or task, and Prefect with it, when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'hpo_flows' has no attribute {name!r}")
    module = "prefect_pages.tune_flow" if name in _TASKS else "deployed.flows"
    return getattr(import_module(f"hpo_flows.{module}"), name)
