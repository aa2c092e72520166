"""The same study, method and journal code on a virtual clock."""

from hpo_core.simulation.analytic import AnalyticCurves
from hpo_core.simulation.cluster import Worker, make_workers
from hpo_core.simulation.executor import SimulatedExecutor, VirtualClock
from hpo_core.simulation.faults import Faults
from hpo_core.simulation.tables import CurveTable, TableSampler

__all__ = [
    "AnalyticCurves",
    "CurveTable",
    "Faults",
    "SimulatedExecutor",
    "TableSampler",
    "VirtualClock",
    "Worker",
    "make_workers",
]
