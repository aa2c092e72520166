"""Checkpoints: which are live and why, their budget, their files and storage."""
