"""The same study, method and journal code on a virtual clock."""

from hpo_core.execution.virtual import Faults, VirtualClock, Worker, make_workers
from hpo_core.simulation.learning_curves import AnalyticCurves, CurveTable, TableSampler
from hpo_core.simulation.repeats import Simulation

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
