"""Pools of slots that several studies share, in words."""
