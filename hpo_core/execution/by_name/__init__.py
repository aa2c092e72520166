"""Studies that hold the devices of a pool by name."""
