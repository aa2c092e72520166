"""Samplers of our own."""
