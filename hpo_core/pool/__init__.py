"""Pools: who may use how much of what several studies share."""
