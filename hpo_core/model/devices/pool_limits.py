"""What a study may ask of a pool of slots that several studies share."""

from __future__ import annotations

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0
LEAST_PRIORITY, MOST_PRIORITY = -100, 100
MOST_SLOTS = 1_000_000
"""Of a pool; whoever publishes more is damaged."""
MOST_DEVICES = 4_096
"""Devices that one study holds by name, or wants."""
MOST_NAME = 300
"""Characters of a device's name; one with more is not used."""
MOST_CLUSTER = 400
"""Characters of the place of a cluster."""
WHOLE_DEVICES = ", whole devices"
"""The end of the name of a pool whose studies hold whole devices."""
