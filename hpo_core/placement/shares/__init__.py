"""Slots that several studies share: how many each gets."""

from hpo_core.placement.shares.members import Position, capacity_of, claim_of, position_of, should_preempt
from hpo_core.placement.shares.water_filling import Claim, divide, ideal_shares

__all__ = [
    "Claim",
    "Position",
    "capacity_of",
    "claim_of",
    "divide",
    "ideal_shares",
    "position_of",
    "should_preempt",
]
