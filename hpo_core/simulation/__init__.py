"""The same study, method and journal code on a virtual clock."""

from hpo_core.execution.virtual import Faults, VirtualClock, Worker, make_workers
from hpo_core.simulation.analytic import AnalyticCurves
from hpo_core.simulation.simulation import Simulation
from hpo_core.simulation.tabulated_curves import CurveTable, TableSampler

__all__ = [
    "AnalyticCurves",
    "CurveTable",
    "Faults",
    "Simulation",
    "TableSampler",
    "VirtualClock",
    "Worker",
    "make_workers",
]
