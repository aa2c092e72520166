"""Which job runs on which slot: the pure step between a study and its executor."""

from hpo_core.placement.placer import Placed, Placement, Placer, Slots

__all__ = ["Placed", "Placement", "Placer", "Slots"]
