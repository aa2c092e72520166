"""Handwritten digits, each trial trained by two processes together."""
