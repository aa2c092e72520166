"""The same study, method and journal code on a virtual clock."""

from hpo_core.simulation.executor import SimulatedExecutor, VirtualClock
from hpo_core.simulation.tables import CurveTable, TableSampler

__all__ = ["CurveTable", "SimulatedExecutor", "TableSampler", "VirtualClock"]
