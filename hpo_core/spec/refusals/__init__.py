"""Refuses settings that contradict each other, one file for each part."""
