"""Which job runs on which slot: the pure step between a study and its executor."""

from hpo_core.placement.policy import OneJobPerSlot, Placement, PlacementPolicy
from hpo_core.placement.slots import Slots

__all__ = ["OneJobPerSlot", "Placement", "PlacementPolicy", "Slots"]
