"""Slots that several studies share: how many each gets."""

from hpo_core.placement.shares.water_filling import Claim, divide, ideal_shares

__all__ = ["Claim", "divide", "ideal_shares"]
