"""The commands that prepare data."""
